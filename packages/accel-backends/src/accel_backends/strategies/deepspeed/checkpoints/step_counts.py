"""How often an optimizer has stepped, which DeepSpeed's optimizers and torch's keep in different ways."""

from __future__ import annotations

from typing import Any

import torch


def restore_step_counts(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer go on from states of whatever optimizer, which were just put into it."""
    if not type(optimizer).__module__.startswith("deepspeed."):
        # As in `load_state_dict`: torch's own make tensors of counts there.
        optimizer.__setstate__({"state": optimizer.state, "param_groups": optimizer.param_groups})
        return
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] = int(state["step"])
    if hasattr(optimizer, "ds_opt_adam"):
        _replay_powers(optimizer)


def _replay_powers(optimizer: Any) -> None:
    """Multiply the powers of beta again, as DeepSpeed's Adam on the CPU (0.19.8) does in each step.

    It keeps them where no checkpoint reaches, and would compute them anew after a load, with another rounding. With
    several betas it does so in every step. Powers below fp32's precision next to 1 correct nothing, however rounded.
    """
    counts = {state["step"] for state in optimizer.state.values() if "step" in state}
    betas = {tuple(group["betas"]) for group in optimizer.param_groups}
    if len(counts) != 1 or len(betas) != 1:
        return
    [num_steps], [(beta1, beta2)] = counts, betas
    if max(beta1, beta2) ** num_steps < 2**-26:
        return
    nothing = [torch.empty(0) for _ in range(4)]
    for step in range(1, num_steps + 1):
        optimizer.ds_opt_adam.adam_update(
            optimizer.opt_id, step, 0.0, beta1, beta2, 1e-8, 0.0, True, *nothing
        )
