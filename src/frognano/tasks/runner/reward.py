"""Harbor's verifier: runs the expected tests and writes reward.json to the folder given. Standard library only."""

import json
import os
import secrets
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def passes(ids: list[str], plugins: list[str], good: tuple[str, ...]) -> bool:
    nonce, name = secrets.token_hex(16), secrets.token_hex(8)
    report = f"/tmp/report-{name}.jsonl"
    files = list(dict.fromkeys(i.partition("::")[0] for i in ids))
    request = {
        "runs": [{"nonce": nonce, "report": report, "ids": ids, "files": files}],
        **{"plugins": plugins, "coverage": False, "cpu_seconds": 300, "pycache": f"/tmp/pycache-{name}"},
        **{
            "changed": [],
            "compiled": "",
            "while_passing": False,
            "sweep": False,
        },  # a sweep would end whatever else runs here
    }
    env = {"PATH": os.environ["PATH"], "HOME": "/tmp", "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    argv = [sys.executable, "-s", HERE + "/launcher.py"]
    subprocess.run(argv, cwd="/repo", env=env, input=json.dumps(request).encode(), stdout=sys.stderr)
    try:
        with open(report) as file:
            records = [json.loads(line) for line in file]
    except (OSError, ValueError):
        return False
    if not records or any(r.get("nonce") != nonce for r in records) or records[-1]["kind"] != "end":
        return False
    seen: dict[str, set[str]] = {}
    sentinels = {
        (r["id"].rpartition("::")[2], r["outcome"]) for r in records if r["kind"] == "sentinel" and r["when"] == "call"
    }
    for r in records:
        if r["kind"] == "test" and (r["when"] == "call" or r["outcome"] != "passed"):
            said = "xfailed" if r["xfail"] and r["outcome"] == "skipped" else r["outcome"]
            seen.setdefault(r["id"], set()).add(said)
    honest = sentinels == {("test_must_pass", "passed"), ("test_must_fail", "failed")}
    return honest and all(seen.get(i) and seen[i] <= set(good) for i in ids)


def main() -> None:
    with open(os.path.dirname(HERE) + "/expected.json") as file:
        expected = json.load(file)
    plugins = expected["plugins"]
    solved = passes(expected["f2p"], plugins, ("passed",))
    if solved and expected["p2p"]:
        solved = passes(expected["p2p"], plugins, ("passed", "xfailed"))
    with open(sys.argv[1] + "/reward.json", "w") as file:
        json.dump({"reward": 1.0 if solved else 0.0}, file)


if __name__ == "__main__":
    main()
