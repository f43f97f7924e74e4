"""What floats are stored as: `torch_xla` can store fp32 as bf16 and tell nobody."""

from __future__ import annotations

import torch

from accel_backends.strategies.xla import packages
from accel_state.environment import environ, find_setting
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user

_SETTINGS = ("xla_use_bf16", "xla_downcast_bf16")
_ONE_AND_A_BIT = 1.0 + 2.0**-12
"""A number that fp32 can hold and bf16 cannot."""


def set_storage(*, dtype: torch.dtype | None) -> None:
    """Let floats be stored as the run says, and check that they are.

    Args:
        dtype: What operations are cast to; None: nothing is cast.

    Raises:
        ConfigError: If floats would be stored in another format than the run asks for.
    """
    wants_bf16 = dtype is torch.bfloat16 and environ.read("downcast_bf16")
    if wants_bf16:
        environ.write("xla_downcast_bf16", True)
    is_bf16 = torch.tensor(_ONE_AND_A_BIT, device=packages.package().device()).item() != _ONE_AND_A_BIT
    if wants_bf16 and not is_bf16:
        raise ConfigError(
            "`downcast_bf16` has no effect here: `torch_xla` made tensors before the `Accelerator`, or this release no "
            "longer reads `XLA_DOWNCAST_BF16`. Build the `Accelerator` first, or convert the model by "
            "`model.to(torch.bfloat16)`."
        )
    if is_bf16 and dtype is None:
        variables = [f"`{find_setting(name).variable}`" for name in _SETTINGS if environ.read(name)]
        raise ConfigError(
            f"{' and '.join(variables) or '`torch_xla`'} makes this process store fp32 as bf16, but the run has "
            '`mixed_precision=no`. Unset it, or pass `mixed_precision="bf16"`.'
        )
    if is_bf16 and not wants_bf16:
        warn_user(
            "Weights and optimizer states are stored in bf16, although they say that they are fp32: `XLA_USE_BF16` or "
            "`XLA_DOWNCAST_BF16` is set. Unset it to compute in bf16 and store in fp32.",
        )
