"""kill -9 while tasks are calibrated, in the middle of an update, while a checkpoint is written: the same command goes on, with
the same tasks and the same updates, and nothing is sampled twice. Told by comparing with a run that nobody killed.

Everything is real but three things. The policy is a Llama of two random layers, since it costs nothing; it never solves
anything. So that there is signal, the grader decides by a hash of the task and of the rollout's name: about half of the
rollouts count as solved. And the run's secret is fixed, so that two runs have the same task ids. Boxes, tasks, sampling,
updates, the store and kill -9 itself are as ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from frognano.models.pocket import ensure_pocket_model
from frognano.runs import RunStore
from loop.forks import Forks
from loop.toys import write_pool, write_recipe

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(900)]

RECIPE = """
[rollouts]
concurrency = 4
[pilot]
screen_n = 2
confirm_n = 2
max_refinements = 1
target = 2
rollout_budget = 40
batch_rollouts = 4
pool = 3
[train]
iterations = 2
updates = 3
groups = 1
group_size = 2
checkpoint_every = 2
valid_every = 3
[reward]
threshold = 8
[eval]
heldout_tasks = 1
valid_tasks = 1
"""

KILLS = (
    "grade/6",  # calibration: four rollouts in flight, some of them sampled and not recorded
    "step/1",  # gradients are there, the weights are not stepped
    "updated/2",  # the weights are stepped, nothing of it is written
    "write/1",  # half of the checkpoint is written
    "saved/1",  # the checkpoint is whole, the journal does not know of it
    "updated/4",  # the second iteration
)


def shim() -> None:
    """What the commands of this test begin with: the grader, the secret, a witness of all sampling and all optimizers, and
    the wish to die in `DIE`: `<moment>/<how often it has come>`."""
    from frognano.harness.leaf.agent import Leaf
    from frognano.loop import updates
    from frognano.loop.session import Session
    from frognano.records import Status, Verdict
    from frognano.rl import checkpoint
    from frognano.rl.trainer import Trainer
    from frognano.tasks.grading import Grader

    wish, _, count = os.environ.get("DIE", "/0").partition("/")
    came: Counter[str] = Counter()

    def reached(moment: str) -> None:
        came[moment] += 1
        if moment == wish and came[moment] == int(count):
            os.kill(os.getpid(), signal.SIGKILL)

    def witness(**what: object) -> None:
        with open(os.environ["WITNESS"], "a") as file:
            file.write(json.dumps(what) + "\n")

    real_run, real_update, real_step = Leaf.run, Trainer.update, Trainer._step
    real_write, real_save = checkpoint._write, checkpoint.save_checkpoint

    async def run(self: Any, prompt: Any, sandbox: Any, model: Any, sampling: Any, budget: Any) -> Any:
        trajectory = await real_run(self, prompt, sandbox, model, sampling, budget)
        witness(sampled=model.session)
        return trajectory.model_copy(update={"patch": model.session.encode()})  # the patch is what the grader is given

    async def grade(self: Any, task: Any, patch: bytes) -> Verdict:
        reached("grade")
        solved = hashlib.sha256(task.id.encode() + patch).digest()[0] % 2 == 0
        return Verdict(status=Status.RESOLVED if solved else Status.NOT_RESOLVED)

    def update(self: Any, groups: Any) -> dict[str, float]:
        metrics = real_update(self, groups)
        reached("updated")
        return metrics

    def step(self: Any, gradients: Any) -> float:
        witness(step=self.step, moments=len(self.optimizer.state))
        reached("step")
        return real_step(self, gradients)

    def write(state: Any, file: Any) -> None:
        real_write(state, file)
        if wish == "write":
            os.truncate(file.fileno(), file.tell() // 2)
        reached("write")

    def save(folder: Any, trainer: Any) -> None:
        real_save(folder, trainer)
        reached("saved")

    def secret(self: Any) -> str:
        return "0123456789abcdef"

    changes = ((Leaf, "run", run), (Grader, "grade", grade), (Trainer, "update", update), (Trainer, "_step", step))
    for place, name, new in (*changes, (checkpoint, "_write", write), (updates, "save_checkpoint", save)):
        setattr(place, name, new)
    Session.secret = secret  # type: ignore[method-assign]


def write_model(folder: Path) -> Path:
    """Two random layers under the pocket model's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    pocket = ensure_pocket_model()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=json.loads((pocket / "config.json").read_text())["vocab_size"],
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for file in pocket.glob("*token*"):
        shutil.copy(file, folder)
    return folder


def journal(store: RunStore) -> dict[str, Any]:
    """What was done; not how long it took, which has an entry for each process."""
    return {k: v for k, v in store.steps().items() if not k.startswith("phase/")}


def sampled(witness: Path) -> list[str]:
    lines = map(json.loads, witness.read_text().splitlines())
    return [line["sampled"] for line in lines if "sampled" in line]


def test_killed_runs_end_as_if_nothing_had_been(tmp_path: Path):
    settings = {"layers": 1, "temperature": 1.0, "tokens": 8, "turns": 1}
    recipe = write_recipe(
        tmp_path / "r.toml", RECIPE, pool=write_pool(tmp_path), model=write_model(tmp_path / "model"), **settings
    )
    with Forks(tmp_path) as forks:

        def frognano(name: str, die: str) -> int:
            env = {"WITNESS": str(tmp_path / f"{name}.jsonl"), "DIE": die}
            code, err = forks.run("loop", recipe, "--out", tmp_path / name, env=env, shim="loop.kill_test:shim")
            assert code == (-9 if die != "/0" else 0), (die, err)
            return code

        frognano("whole", "/0")
        recorded: set[str] = set()
        for die in KILLS:
            before = len(sampled(tmp_path / "killed.jsonl")) if recorded else 0
            frognano("killed", die)
            assert not recorded & set(sampled(tmp_path / "killed.jsonl")[before:])
            with RunStore.open(tmp_path / "killed", read_only=True) as store:
                recorded = {f"{row.key}/0" for row in store.rollouts()}
        before = len(sampled(tmp_path / "killed.jsonl"))
        frognano("killed", "/0")
        assert not recorded & set(sampled(tmp_path / "killed.jsonl")[before:])

    with (
        RunStore.open(tmp_path / "whole", read_only=True) as whole,
        RunStore.open(tmp_path / "killed", read_only=True) as killed,
    ):
        assert journal(killed) == journal(whole)
        assert whole.done("iter2/update/3")
        for n in (1, 2):
            assert [t.id for t in killed.tasks(f"iter{n}")] == [t.id for t in whole.tasks(f"iter{n}")]
        assert not {t.id for t in whole.tasks("iter1")} & {t.id for t in whole.tasks("iter2")}
        rows = Counter(row.key for row in killed.rollouts())
        assert max(rows.values()) == 1
        assert set(rows) == {row.key for row in whole.rollouts()}
        assert [s for s, _ in killed.metrics("train")] == [s for s, _ in whole.metrics("train")] == [1, 2, 3, 4, 5, 6]
        told = [[(d.task_id, d.action, d.detail) for d in store.decisions()] for store in (killed, whole)]
        assert told[0] == told[1]
        selected = set(whole.steps("policies/").values()) - {"base"}
    for name in ("whole", "killed"):
        assert {f.name for f in (tmp_path / name / "checkpoints").iterdir()} == selected
        assert not list((tmp_path / name).rglob(".*"))  # nothing half-made is left
    steps = [line for line in map(json.loads, (tmp_path / "whole.jsonl").read_text().splitlines()) if "step" in line]
    assert sum(line == {"step": 0, "moments": 0} for line in steps) == 2  # each iteration begins with a new optimizer
    assert steps[0] == {"step": 0, "moments": 0}
