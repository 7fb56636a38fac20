"""kill -9 at random moments: every row keeps its file, every metric its line, nothing is written twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from frognano.runs import RunStore

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from frognano.runs import RunStore
from runs import made
store = RunStore.create(Path(sys.argv[1]), {"seed": 1})
done = len(store.rollouts())
print("open", flush=True)
for n in range(done, 100_000):
    store.put_rollout(made.key(n), made.trajectory(f"t{n}"), made.verdict())
    store.log("train", n, {"reward": n})
    store.finish(f"step{n}", n)
"""


def test_kill_nine_at_random_moments(tmp_path: Path):
    run, moments, counts = tmp_path / "run", random.Random(7), []
    for attempt in range(10):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run), str(Path(__file__).parents[1])], stdout=subprocess.PIPE, text=True
        )
        if attempt:  # the first is killed while it makes the run
            assert writer.stdout is not None
            assert writer.stdout.readline() == "open\n"
            time.sleep(moments.uniform(0.0, 0.4))
        else:
            while not run.exists():
                time.sleep(0.001)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        if not (run / "index.sqlite").exists():
            counts.append(0)
            continue
        with RunStore.open(run, {"seed": 1}) as store:
            rows = store.rollouts()
            assert [r.key.index for r in rows] == list(range(len(rows)))
            assert {f"{r.trajectory_id}.json.gz" for r in rows} == {f.name for f in (run / "trajectories").iterdir()}
            for row in rows[-3:]:
                assert store.trajectory(row.trajectory_id).id == row.trajectory_id
            steps = [step for step, _ in store.metrics("train")]
            lines = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
            assert lines == steps
            assert len(rows) - 1 <= len(steps) + 9  # at most the one in flight is missing per kill
            counts.append(len(rows))
    assert counts == sorted(counts)
    assert counts[-1] > 20
