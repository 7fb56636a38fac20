"""Kill a run of the loop twenty times with kill -9, start the same command again each time, and compare it with a run that
nobody killed.

python benchmarks/crash_drill.py --out docs/results/crash_drill.json

The run is that of the tests: two toy repositories, the real pocket model, two iterations. Repositories, environments and
baselines are made anew (a cache of the drill's own), so that these phases are killed too. The command is the console
script's `main`, forked from a process that has imported torch already (`tests/loop/forks.py`), in a session of its own.

The moments: the whole run's time is cut into as many parts as there are kills, a moment is drawn in each, and it is carried
over to the killed run by what was recorded at it (rows of the index) and by the seconds since. A kill is of the main process,
of its whole process group, or of a random descendant first and of the main process up to a second later.

The sampler holds one row at a time here (`--rows 1`), so that a token does not depend on which other rollouts happened to be
in its batch; then the killed run must be the whole one bit by bit. With more rows the last bits of a log-prob depend on the
batch, in a run that nobody kills too; the drill then says what differs and asserts the rest.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from common import commit  # noqa: E402

from frognano.loop.recipe import RecipeConfig  # noqa: E402
from frognano.models.pocket import ensure_pocket_model  # noqa: E402
from frognano.runs import RunStore  # noqa: E402
from frognano.runs.recipe import load_recipe  # noqa: E402
from frognano.sandbox.resident import tree  # noqa: E402
from frognano.sandbox.scratch import scratch_root  # noqa: E402
from loop.compare import compare, own_rules  # noqa: E402
from loop.forks import Command, Forks  # noqa: E402
from loop.toys import write_pool, write_recipe  # noqa: E402

RECIPE = """
[rollouts]
concurrency = 6
rows = {rows}
[pilot]
screen_n = 4
confirm_n = 4
max_refinements = 0
target = 1
rollout_budget = 24
batch_rollouts = 8
pool = 3
[train]
iterations = 2
updates = 3
groups = 1
group_size = 4
checkpoint_every = 2
valid_every = 3
[optimizer]
learning_rate = 4e-5
[eval]
heldout_tasks = 2
valid_tasks = 1
"""
"""About 60 rollouts. A checkpoint is not written at every update, so that some updates are computed again."""

SECRET = "5e98a0f3e8dee2db"
"""Names the tasks of both runs, and so draws their tokens; with this one the pocket model shows signal."""
KINDS = ("main", "main", "group", "child")
_SUBREAPER = 36


def progress(run: Path) -> int:
    """What is recorded: rollouts and steps of the journal; 0 before there is a run."""
    try:
        with closing(sqlite3.connect(f"file:{run / 'index.sqlite'}?mode=ro", uri=True, timeout=5)) as db:
            rows = "SELECT (SELECT count(*) FROM rollouts), (SELECT count(*) FROM steps WHERE name NOT LIKE 'phase/%')"
            return sum(db.execute(rows).fetchone())
    except sqlite3.Error:
        return 0


def rollouts(run: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{run / 'index.sqlite'}?mode=ro", uri=True, timeout=5)) as db:
            return int(db.execute("SELECT count(*) FROM rollouts").fetchone()[0])
    except sqlite3.Error:
        return 0


def phase_of(said: str) -> str:
    """The innermost phase that had begun and not ended, by the lines that the command printed; what it did before else."""
    running: list[str] = []
    for line in said.splitlines():
        name, found, rest = line.partition(": ")
        if not found or ("/" not in rest.split(" ")[0] and not rest.split(" ")[0].isdigit()):
            continue
        if " · done in" in line or " · stopped after" in line:
            running = [r for r in running if r != name]
        elif name not in running:
            running.append(name)
    if running:
        return running[-1]
    return "between phases" if " · " in said else "loading the model" if "loading" in said else "start"


class Drill:
    """`folder` gets a recipe, and for each run its folder, cache and temporary files."""

    def __init__(self, folder: Path, forks: Forks, rows: int) -> None:
        self.folder, self.forks = folder, forks
        settings = {
            "model": ensure_pocket_model(),
            "layers": 4,
            "temperature": 0.7,
            "tokens": 44,
            "turns": 1,
            "rows": rows,
        }
        self.recipe = write_recipe(folder / "drill.toml", RECIPE, pool=write_pool(folder / "pool"), **settings)
        self.pids: list[int] = []

    def prepare(self, name: str) -> Path:
        for part in ("cache", "tmp"):
            (self.folder / f"{name}-{part}").mkdir()
        run = self.folder / name
        with RunStore.create(run, load_recipe(self.recipe, RecipeConfig).model_dump(mode="json")) as store:
            store.finish("secret", SECRET)
        return run

    def start(self, name: str) -> Command:
        env = {"XDG_CACHE_HOME": str(self.folder / f"{name}-cache"), "TMPDIR": str(self.folder / f"{name}-tmp")}
        command = self.forks.start("loop", self.recipe, "--out", self.folder / name, env=env)
        self.pids.append(command.pid)
        return command

    def whole(self, name: str) -> list[tuple[float, int]]:
        """Run without a kill; when (seconds) how much had been recorded."""
        run, began = self.prepare(name), time.monotonic()
        command, seen = self.start(name), [(0.0, 0)]

        def look() -> bool:
            if (now := progress(run)) != seen[-1][1]:
                seen.append((time.monotonic() - began, now))
            return False

        code = command.wait(look, seconds=3600)
        assert code == 0, command.err
        return [*seen, (time.monotonic() - began, seen[-1][1])]

    def kill(self, command: Command, kind: str, rng: random.Random) -> str:
        """Returns what was killed. The server that forked the command reaps it."""
        killed = kind
        if kind == "group":
            os.killpg(command.pid, signal.SIGKILL)
        elif kind == "child":
            below = tree(command.pid)[1:]
            killed = "main (it had no child)"
            with suppress(ProcessLookupError):
                if below:
                    victim = rng.choice(below)
                    name = Path(f"/proc/{victim}/comm").read_text().strip() if Path(f"/proc/{victim}").exists() else "?"
                    os.kill(victim, signal.SIGKILL)
                    killed = f"child ({name}), main later"
            time.sleep(rng.random())
        with suppress(ProcessLookupError):
            os.kill(command.pid, signal.SIGKILL)
        command.wait(seconds=60)
        return killed

    def orphans_gone(self) -> float:
        """Seconds until nothing that the command had started is alive. Orphans become children of this process, its
        descendants' reaper."""
        began, server = time.monotonic(), self.forks.process.pid
        while time.monotonic() - began < 60:
            below = [p for p in tree(os.getpid())[1:] if p != server]
            for pid in below:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if not below:
                return time.monotonic() - began
            time.sleep(0.05)
        commands = [Path(f"/proc/{p}/cmdline").read_bytes()[:200] for p in below if Path(f"/proc/{p}").exists()]
        raise AssertionError(f"a minute after a kill these still run: {commands}")

    def killed(self, name: str, seen: list[tuple[float, int]], kills: int, rng: random.Random) -> list[dict[str, Any]]:
        run, table = self.prepare(name), []
        kinds = [KINDS[i % len(KINDS)] for i in range(kills)]
        rng.shuffle(kinds)
        for number in range(kills):
            moment = (number + rng.random()) / kills * 0.98 * seen[-1][0]
            began_at, wanted = next((t, n) for t, n in reversed(seen) if t <= moment)
            before, started = rollouts(run), time.monotonic()
            command = self.start(name)
            code = command.wait(lambda wanted=wanted: progress(run) >= wanted, seconds=1200)
            if code is None:
                end = time.monotonic() + moment - began_at
                code = command.wait(lambda end=end: time.monotonic() >= end, seconds=1200)
            assert code is None, f"over with code {code} before kill {number + 1}:\n{command.err[-2000:]}"
            what = self.kill(command, kinds[number], rng)
            took = time.monotonic() - started
            gone = self.orphans_gone()
            table.append(
                {
                    "kill": number + 1,
                    "what": what,
                    "at_whole_seconds": round(moment, 1),
                    "seconds": round(took, 1),
                    "phase": phase_of(command.err),
                    "rollouts_before": before,
                    "rollouts_after": rollouts(run),
                    "gone_after_seconds": round(gone, 2),
                }
            )
            print(json.dumps(table[-1]), file=sys.stderr, flush=True)
        command = self.start(name)
        code = command.wait(seconds=3600)
        assert code == 0, command.err
        return table

    def leftovers(self, name: str) -> list[str]:
        """What no process of the drill may leave: scratch, temporary files, half-made folders in cache and run."""
        left = [p for p in scratch_root().glob("frognano-*") if p.name.split("-")[1] in map(str, self.pids)]
        left += list((self.folder / f"{name}-tmp").iterdir())
        for folder in (self.folder / name, self.folder / f"{name}-cache" / "frognano"):
            for pattern in (".*", "*.part", "*.part-*", "frognano-*"):
                left += [*folder.glob(pattern), *folder.glob(f"*/{pattern}")]
        return sorted({str(p) for p in left if "uv" not in p.relative_to(p.anchor).parts})  # uv's cache is uv's own


def mounts() -> list[str]:
    return sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())


def page(result: dict[str, Any]) -> str:
    head = ("kill", "of", "phase", "seconds", "rollouts before → after", "all gone after")
    lines = [f"| {' | '.join(head)} |", "| ---: | --- | --- | ---: | ---: | ---: |"]
    for row in result["kills"]:
        cells = [row["kill"], row["what"], row["phase"], row["seconds"]]
        cells += [f"{row['rollouts_before']} → {row['rollouts_after']}", f"{row['gone_after_seconds']} s"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "| compared with the run that nobody killed | |", "| --- | --- |"]
    lines += [f"| {what} | {said} |" for what, said in result["compared"].items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of what is killed")
    parser.add_argument("--rows", type=int, default=1, help="rollouts that the sampler holds at once")
    parser.add_argument("--folder", type=Path, help="where the runs live, and stay; default: a temporary one")
    parser.add_argument("--machine", default="not said")
    parser.add_argument("--out", type=Path, help="raw JSON")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="crash-drill-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    mounted, began = mounts(), time.monotonic()
    with Forks(folder) as forks:
        drill = Drill(folder, forks, given.rows)
        seen = drill.whole("whole")
        print(f"whole run: {seen[-1][0]:.0f} s", file=sys.stderr, flush=True)
        kills = drill.killed("killed", seen, given.kills, random.Random(given.seed))
        drill.orphans_gone()
    import torch
    import transformers

    problems = [f"left behind: {p}" for name in ("whole", "killed") for p in drill.leftovers(name)]
    problems += [f"mounted: {m}" for m in set(mounts()) - set(mounted)]
    problems += own_rules(folder / "whole") + own_rules(folder / "killed")
    compared, differences = compare(folder / "whole", folder / "killed", exact=given.rows == 1)
    problems += differences
    result = {
        "command": f"python benchmarks/crash_drill.py --kills {given.kills} --seed {given.seed} --rows {given.rows}",
        "machine": given.machine,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "commit": commit(),
        "whole_seconds": round(seen[-1][0], 1),
        "drill_seconds": round(time.monotonic() - began, 1),
        "kills": kills,
        "compared": compared,
        "problems": problems,
    }
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(page(result))
    for problem in problems:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    if given.folder is None and not problems:
        shutil.rmtree(folder)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
