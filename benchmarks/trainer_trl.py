"""One update of TRL's GRPOTrainer on a recorded batch. Runs in TRL's own environment; `benchmarks/trainer.py` starts it.

The batch comes in through `rollout_func`, TRL's documented hook for rollouts that were made elsewhere: token ids, the log-probs
they were sampled with, and `env_mask`, which is 0 on tokens of the environment. Rewards come through a reward function. What is
measured lies between the callbacks on_step_begin and on_step_end: padding, advantages, forward, backward, clip, AdamW.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func is experimental; that is known

import torch
import trl.trainer.utils
from common import peak_mb, say_update, update_options
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Watch(TrainerCallback):
    """CPU and wall time of the step; the gradient, where it is asked for."""

    def __init__(self, gradients: Path | None) -> None:
        self.gradients = gradients
        self.said: dict[str, float] = {}

    def on_step_begin(self, *_, **__) -> None:
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def on_pre_optimizer_step(self, *_, model=None, **__) -> None:
        if self.gradients is not None:
            torch.save({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, self.gradients)

    def on_step_end(self, *_, **__) -> None:
        self.said = {"cpu_seconds": time.process_time() - self.cpu, "wall_seconds": time.perf_counter() - self.wall}


def main() -> None:
    parser = update_options(__doc__)
    parser.add_argument("--rows", type=int, default=8, help="per_device_train_batch_size")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--targets-only", action="store_true", help="the head where labels are, as TRL does on a GPU")
    parser.add_argument("--gradients", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.targets_only:
        # On a GPU TRL computes log-probs of completion tokens alone; on a CPU of every position, the prompt's too. The
        # switch is this function of its module; the kernels ask another one and stay on their CPU path.
        trl.trainer.utils._use_triton = lambda device: True

    recorded = json.loads(given.batch.read_text())
    groups = recorded["groups"][: given.groups or None]
    size = len(groups[0]["rows"])
    if any(len(g["rows"]) != size for g in groups):
        sys.exit("error: TRL takes groups of one size only: record such a batch")
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    frozen = model.config.num_hidden_layers - given.layers
    for name, parameter in model.named_parameters():
        part = name.split(".")
        parameter.requires_grad_(part[1] == "layers" and int(part[2]) >= frozen)

    def rollouts(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list]:
        taken = [0] * len(groups)
        out: dict[str, list] = {k: [] for k in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "recorded")}
        for prompt in prompts:
            g = int(prompt)
            row = groups[g]["rows"][taken[g]]
            taken[g] += 1
            out["prompt_ids"].append(groups[g]["prompt_ids"])
            out["completion_ids"].append(row["ids"])
            out["logprobs"].append(row["logprobs"])
            out["env_mask"].append(row["loss_mask"])
            out["recorded"].append(row["reward"])
        return out

    total = size * len(groups)
    watch = Watch(given.gradients)
    with tempfile.TemporaryDirectory() as scratch:
        args = GRPOConfig(
            output_dir=scratch,
            use_cpu=True,
            bf16=False,
            beta=0.0,
            loss_type="dapo",  # the mean over all trained tokens of the batch, as ours
            scale_rewards="group",
            temperature=recorded["temperature"],
            num_generations=size,
            per_device_train_batch_size=given.rows,
            gradient_accumulation_steps=total // given.rows,
            gradient_checkpointing=given.checkpointing,
            max_completion_length=max(len(r["ids"]) for g in groups for r in g["rows"]),
            max_steps=1,
            learning_rate=4e-5,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            weight_decay=0.0,
            max_grad_norm=1e9 if given.gradients else 1.0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model,
            reward_funcs=lambda recorded, **_: recorded,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [str(g) for g in range(len(groups))]}),
            processing_class=AutoTokenizer.from_pretrained(given.model),
            rollout_func=rollouts,
            callbacks=[watch],
        )
        loaded = peak_mb()
        trainer.train()
    said = [x for x in trainer.state.log_history if "grad_norm" in x]
    numbers = {"loss": said[-1]["loss"], "grad_norm": said[-1]["grad_norm"]} if said else {}
    say_update(watch.said, loaded, numbers, trl=trl.__version__, torch=torch.__version__)


if __name__ == "__main__":
    main()
