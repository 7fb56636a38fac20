"""SkyRL's `dppo` on tensors from a file. Runs in SkyRL's environment: skyrl_loss.py IN OUT."""

import sys
import typing

if sys.version_info < (3, 12):
    # SkyRL writes typing.TypedDict; pydantic takes only that of typing_extensions before Python 3.12. No loss depends on it.
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict

import torch
from skyrl.backends.skyrl_train.utils.ppo_utils import (
    PolicyLossRegistry,
    apply_loss_reduction_to_advantages_minibatch,
)
from skyrl.train.config import AlgorithmConfig

asked, out = torch.load(sys.argv[1]), {}
config = AlgorithmConfig(policy_loss_type="dppo", use_kl_loss=False, loss_reduction="token_mean")
config.dppo.dppo_type = "binary_tv"
config.dppo.delta_low = config.dppo.delta_high = asked["delta"]
for name, case in asked["cases"].items():
    logp = case["logp"].clone().requires_grad_()
    advantages = case["advantage"][:, None].expand_as(logp).contiguous()
    advantages = apply_loss_reduction_to_advantages_minibatch(
        advantages, case["mask"], "token_mean", micro_batch_size=len(logp), max_seq_len=logp.shape[1]
    )
    # What the log-probs were under the policy before the update does not matter where the sampler's are given.
    old = torch.full_like(logp, -1.0)
    loss, _ = PolicyLossRegistry.get("dppo")(logp, old, advantages, config, case["mask"], case["logq"])
    loss.backward()
    out[name] = {"loss": loss.detach(), "gradient": logp.grad}
torch.save(out, sys.argv[2])
