"""What is put in comes out, once."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from frognano.records import ExitReason, Status
from frognano.runs import AlreadyRecorded, RunStore, StoreError
from runs import made

CONFIG = {"seed": 1, "rl": {"lr": 4e-5, "layers": 15}}


@pytest.fixture
def store(tmp_path: Path):
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        yield store


def test_a_rollout_comes_back_as_it_was(store: RunStore):
    t, v = made.trajectory("t1"), made.verdict()
    store.put_rollout(made.key(), t, v, {"top_p": 1.0})
    assert store.trajectory("t1") == t
    assert store.verdict("t1") == v
    (row,) = store.rollouts(purpose="iter1/train/1", policy="pi0", task_id="task0001")
    assert row == store.get(made.key())
    assert (row.status, row.exit_reason) == (Status.RESOLVED, ExitReason.AGENT)
    assert (row.resolved, row.counts, row.valid_edit) == (True, True, True)
    assert (row.generated_tokens, row.turns, row.seconds, row.fresh) == (7, 1, 1.5, {"top_p": 1.0})


def test_the_same_rollout_is_refused_and_the_first_one_stays(store: RunStore):
    store.put_rollout(made.key(), made.trajectory("t1"), made.verdict())
    with pytest.raises(AlreadyRecorded, match="iter1/train/1"):
        store.put_rollout(made.key(), made.trajectory("t2"), made.verdict())
    with pytest.raises(AlreadyRecorded):
        store.put_rollout(made.key(1), made.trajectory("t1", policy="other"), made.verdict())
    assert store.trajectory("t1").policy == "pi0"
    assert len(store.rollouts()) == 1


def test_a_purpose_that_ends_in_a_slash_is_a_prefix(store: RunStore):
    for n, purpose in enumerate(["iter1/train/1", "iter1/train/2", "iter1/screen", "iter10/screen"]):
        store.put_rollout(made.key(purpose=purpose), made.trajectory(f"t{n}"), made.verdict())
    assert [r.trajectory_id for r in store.rollouts(purpose="iter1/train/")] == ["t0", "t1"]
    assert [r.trajectory_id for r in store.rollouts(purpose="iter1/")] == ["t0", "t1", "t2"]
    assert store.rollouts(purpose="iter1") == []


def test_a_step_is_finished_once(store: RunStore):
    assert store.done("iter1/pilot") is None
    store.finish("iter1/pilot", {"tasks": ["a", "b"]})
    store.finish("iter1/pilot", {"tasks": ["a", "b"]})
    assert store.done("iter1/pilot") == {"tasks": ["a", "b"]}
    with pytest.raises(StoreError, match="iter1/pilot"):
        store.finish("iter1/pilot", {"tasks": ["a"]})
    store.finish("iter1/train", False)
    assert store.steps("iter1/") == {"iter1/pilot": {"tasks": ["a", "b"]}, "iter1/train": False}


def test_grades_are_kept_but_never_an_infrastructure_error(store: RunStore):
    assert store.grade("task0001", "ab") is None
    store.put_grade("task0001", "ab", made.verdict())
    store.put_grade("task0001", "ab", made.verdict(Status.NOT_RESOLVED))
    assert store.grade("task0001", "ab") == made.verdict()
    with pytest.raises(ValueError, match="infrastructure"):
        store.put_grade("task0001", "cd", made.verdict(Status.INFRASTRUCTURE_ERROR))


def test_the_ledger_does_not_grow_when_a_phase_is_repeated(store: RunStore):
    for _ in range(2):
        store.reject("c1", "no_f2p", {"tests": 3})
        store.decide("iter1/c2/0", "task0001", "admit", {"p": 0.5})
    assert [(r.candidate_id, r.reason, r.detail) for r in store.rejections()] == [("c1", "no_f2p", {"tests": 3})]
    assert [(d.key, d.action, d.detail) for d in store.decisions()] == [("iter1/c2/0", "admit", {"p": 0.5})]
    with pytest.raises(StoreError, match="iter1/c2/0 is admit of task0001"):
        store.decide("iter1/c2/0", "task0001", "drop")


def test_tasks_keep_their_order_and_take_new_evaluations(store: RunStore):
    store.put_task(made.task("task0001"), "heldout")
    store.put_task(made.task("task0002"), "heldout")
    store.put_task(made.task("task0003"), "iter1")
    renewed = made.task("task0001").at_rung(0)
    store.put_task(renewed, "heldout")
    assert store.tasks("heldout") == [renewed, made.task("task0002")]
    assert [t.id for t in store.tasks()] == ["task0001", "task0002", "task0003"]
    assert store.task_purposes() == ["heldout", "iter1"]


def test_metrics_stand_in_index_and_jsonl_alike(store: RunStore):
    store.log("train", 2, {"reward": 0.5})
    store.log("train", 1, {"reward": math.nan})
    store.log("train", 2, {"reward": 0.75})
    (one, a), (two, b) = store.metrics("train")
    assert (one, two, b) == (1, 2, {"reward": 0.75})
    assert math.isnan(a["reward"])
    lines = [json.loads(line) for line in (store.path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [
        {"series": "train", "step": 2, "values": {"reward": 0.75}},
        {"series": "train", "step": 1, "values": {"reward": None}},
    ]


@pytest.mark.parametrize(
    "damage", [b"", b'{"series": "train", "st', b'{"a": 1}\n' * 9], ids=["lost", "torn", "doubled"]
)
def test_a_jsonl_that_lags_the_index_is_mended_on_opening(tmp_path: Path, damage: bytes):
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        store.log("train", 1, {"reward": 0.5})
    file = tmp_path / "run" / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(damage)
    RunStore.open(tmp_path / "run").close()
    assert file.read_bytes() == whole


def test_coming_back_with_another_recipe_names_what_differs(tmp_path: Path):
    RunStore.create(tmp_path / "run", CONFIG).close()
    RunStore.create(tmp_path / "run", {"rl": {"layers": 15, "lr": 4e-5}, "seed": 1}).close()
    with pytest.raises(StoreError, match=r"rl\.lr \(4e-05 → 0\.1\), seed \(1 → unset\)"):
        RunStore.create(tmp_path / "run", {"rl": {"lr": 0.1, "layers": 15}})
    RunStore.open(tmp_path / "run").close()  # the refused opening left no lock behind


def test_a_second_writer_is_told_who_holds_the_run(store: RunStore):
    with pytest.raises(StoreError, match="already open in this process"):
        RunStore.open(store.path)
    code = f"from pathlib import Path; from frognano.runs import RunStore; RunStore.open(Path({str(store.path)!r}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert other.returncode == 1
    assert f"in use by process {os.getpid()}" in other.stderr


def test_readers_are_free_while_a_writer_works(store: RunStore):
    store.put_rollout(made.key(), made.trajectory("t1"), made.verdict())
    with RunStore.open(store.path, read_only=True) as reader:
        assert len(reader.rollouts()) == 1
        store.put_rollout(made.key(1), made.trajectory("t2"), made.verdict())
        assert len(reader.rollouts()) == 2
        with pytest.raises(StoreError, match="readonly"):
            reader.finish("x")
    store.close()
    with RunStore.open(store.path, read_only=True) as reader:
        assert len(reader.rollouts()) == 2


def test_threads_share_one_store(store: RunStore):
    def work(n: int) -> None:
        for i in range(20):
            store.put_rollout(made.key(i, purpose=f"p{n}"), made.trajectory(f"t{n}-{i}"), made.verdict())
            store.log(f"s{n}", i, {"x": i})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.rollouts()) == 80
    assert len((store.path / "metrics.jsonl").read_text().splitlines()) == 80


def test_a_folder_that_is_no_run_says_so(tmp_path: Path):
    with pytest.raises(StoreError, match=r"no index\.sqlite"):
        RunStore.open(tmp_path)


def test_a_lost_index_beside_trajectories_is_not_papered_over(tmp_path: Path):
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        store.put_rollout(made.key(), made.trajectory("t1"), made.verdict())
    for file in (tmp_path / "run").glob("index.sqlite*"):
        file.unlink()
    with pytest.raises(StoreError, match=r"trajectories but no index\.sqlite"):
        RunStore.create(tmp_path / "run", CONFIG)


@pytest.mark.parametrize("size", [0, 100, 5000], ids=["empty", "torn header", "garbage"])
def test_a_damaged_index_is_one_clear_error(tmp_path: Path, size: int):
    RunStore.create(tmp_path / "run", CONFIG).close()
    (tmp_path / "run" / "index.sqlite").write_bytes(b"\x5a" * size)
    with pytest.raises(StoreError, match=r"index\.sqlite"):
        RunStore.open(tmp_path / "run")


def test_a_newer_schema_is_refused(tmp_path: Path):
    RunStore.create(tmp_path / "run", CONFIG).close()
    db = sqlite3.connect(tmp_path / "run" / "index.sqlite")
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreError, match="schema version 99"):
        RunStore.open(tmp_path / "run")


def test_a_damaged_trajectory_names_its_file(store: RunStore):
    store.put_rollout(made.key(), made.trajectory("t1"), made.verdict())
    file = store.path / "trajectories" / "t1.json.gz"
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(StoreError, match=r"t1\.json\.gz is damaged"):
        store.trajectory("t1")
    with pytest.raises(ValueError, match="not a file name"):
        store.trajectory("../../etc/passwd")


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path):
    """A tiny tmpfs where it may be mounted."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        with RunStore.create(small / "run", CONFIG) as store:
            filler = small / "filler"
            filler.write_bytes(b"x" * 500_000)

            def fill() -> None:
                for n in range(5000):
                    store.put_rollout(made.key(n), made.trajectory(f"t{n}"), made.verdict(), {"pad": "y" * 3000})

            with pytest.raises(StoreError, match=f"no space left in {small}.*nothing is lost"):
                fill()
            filler.unlink()
            n = len(store.rollouts())
            assert n > 3
            store.put_rollout(made.key(n), made.trajectory(f"t{n}"), made.verdict())
        with RunStore.open(small / "run") as store:
            assert all(store.trajectory(r.trajectory_id) for r in store.rollouts())
            assert not list((small / "run" / "trajectories").glob("*.part"))
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_file_size_limit_leaves_no_half_file(tmp_path: Path):
    """Stands in for a full disk where no tmpfs can be mounted: the write fails half way."""
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
            with pytest.raises(OSError):
                store.put_rollout(made.key(), made.trajectory("t1"), made.verdict())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, old)
        assert list((store.path / "trajectories").iterdir()) == []
        store.put_rollout(made.key(), made.trajectory("t1"), made.verdict())
