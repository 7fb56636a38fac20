"""One update of FrogNano's trainer on a recorded batch, or the check of its gradient; `benchmarks/trainer.py` starts it.

--compare FILE: no update, but the gradient at ratio 1 (q set to p, the deviation with the 1e-4 that TRL adds) against TRL's in
FILE.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from common import peak_mb, say_update, update_options

from frognano.models.llama import LlamaWeights
from frognano.models.policy import LlamaPolicy
from frognano.records import Sample
from frognano.rl import groups as grouping
from frognano.rl.config import DppoConfig, OptimizerConfig
from frognano.rl.dppo import dppo_loss
from frognano.rl.groups import Group
from frognano.rl.packing import micro_batches, static_prefix
from frognano.rl.trainer import Trainer


def read(file: Path, count: int) -> list[Group]:
    recorded = json.loads(file.read_text())
    out = []
    for g, group in enumerate(recorded["groups"][: count or None]):
        samples = [
            Sample(
                trajectory_id=f"{g}-{i}",
                group_id=str(g),
                policy="recorded",
                prompt_ids=tuple(group["prompt_ids"]),
                response_ids=tuple(row["ids"]),
                loss_mask=tuple(row["loss_mask"]),
                logprobs=tuple(row["logprobs"]),
                temperature=recorded["temperature"],
                truncated=False,
                raw_reward=row["reward"],
                reward=row["reward"],
            )
            for i, row in enumerate(group["rows"])
        ]
        out.append(Group(str(g), tuple(samples)))
    return out


def compare(policy: LlamaPolicy, groups: list[Group], max_tokens: int, file: Path) -> dict[str, float]:
    """Distance of the two gradients, as a share of the norm of TRL's, and the greatest of one number."""
    grouping.EPS = 1e-4
    divisor = sum(s.trainable for g in groups for s in g.samples)
    with policy.sharing(static_prefix(groups)):
        for batch in micro_batches(groups, max_tokens):
            logp = policy.score(batch.packed, batch.temperature).logp
            dppo_loss(logp, logp.detach(), batch.advantage, divisor, 0.2).value.backward()
    ours = policy.gradients()
    theirs = torch.load(file)
    zeros = {n: theirs.get(n, torch.zeros_like(v)) for n, v in policy.weights.to_state().items()}
    layers = LlamaWeights.from_state(policy.config, zeros, torch.float32).layers
    want = {f"layers.{i}.{k}": v for i, layer in enumerate(layers) for k, v in layer.items()}
    gap = torch.cat([(ours[n] - want[n]).flatten() for n in ours])
    norm = torch.cat([want[n].flatten() for n in ours]).norm()
    return {
        "gradient_gap": float(gap.norm() / norm),
        "largest_gap": float(gap.abs().max()),
        "gradient_norm": float(norm),
    }


def main() -> None:
    parser = update_options(__doc__)
    parser.add_argument("--micro-batch-tokens", type=int, default=3000)
    parser.add_argument("--compare", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    groups = read(given.batch, given.groups)
    policy = LlamaPolicy(given.model, given.layers, torch.float32)
    if given.compare:
        print(json.dumps(compare(policy, groups, given.micro_batch_tokens, given.compare)))
        return
    optimizer = OptimizerConfig(
        learning_rate=4e-5, betas=(0.9, 0.95), weight_decay=0.0, micro_batch_tokens=given.micro_batch_tokens
    )
    trainer = Trainer(policy, optimizer, DppoConfig())
    loaded = peak_mb()
    cpu, wall = time.process_time(), time.perf_counter()
    metrics = trainer.update(groups)
    spent = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}
    kept = {k: metrics[k] for k in ("loss", "grad_norm", "forward_tokens", "tokens")}
    say_update(spent, loaded, kept, torch=torch.__version__)


if __name__ == "__main__":
    main()
