"""verl's `dppo_tv` on tensors from a file. Runs in verl's environment: verl_loss.py IN OUT.

In bypass mode verl takes the sampler's log-probs as `old_log_prob`, as is done here.
"""

import sys

import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import FSDPActorConfig, OptimizerConfig

loss_of = get_policy_loss_fn("dppo_tv")
asked, out = torch.load(sys.argv[1]), {}
for name, case in asked["cases"].items():
    logp = case["logp"].clone().requires_grad_()
    config = FSDPActorConfig(
        rollout_n=8,
        ppo_micro_batch_size_per_gpu=1,
        optim=OptimizerConfig(lr=1e-6),
        clip_ratio=asked["delta"],
        clip_ratio_low=asked["delta"],
        clip_ratio_high=asked["delta"],
        clip_ratio_c=case.get("clip_ratio_c", asked["clip_ratio_c"]),
        loss_agg_mode="token-mean",
        global_batch_info={"dp_size": 1, "batch_num_tokens": case.get("divisor")},
    )
    advantages = case["advantage"][:, None].expand_as(logp)
    loss, _ = loss_of(case["logq"], logp, advantages, case["mask"], "token-mean", config)
    loss.backward()
    out[name] = {"loss": loss.detach(), "gradient": logp.grad}
torch.save(out, sys.argv[2])
