"""A compiled module whose state dict has the keys of the original."""

from __future__ import annotations

from typing import Any

import torch
from torch import _dynamo, nn

_PREFIX = "_orig_mod."


class OptimizedModule(_dynamo.OptimizedModule):  # the same name, since programs compare names
    """What `torch.compile` returns for a module, without ``_orig_mod.`` in the keys of its state dict.

    Both kinds of keys are accepted when a state is loaded.
    """

    def __init__(self, module: nn.Module, dynamo_ctx: Any) -> None:
        super().__init__(module, dynamo_ctx)
        # On this module, not on the original that attribute access is forwarded to.
        nn.Module.register_load_state_dict_pre_hook(self, _accept_original_keys)  # type: ignore[no-untyped-call]
        nn.Module.register_load_state_dict_post_hook(self, _tell_original_keys)  # type: ignore[no-untyped-call]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the state dict of the original module."""
        state: dict[str, Any] = self._orig_mod.state_dict(*args, **kwargs)
        return state


def compile_module(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """Return ``module`` compiled as `torch.compile` would, with its state dict keys unharmed.

    With ``disable=True`` it is returned as it is.
    """
    compiled: object = torch.compile(module, **compile_kwargs)
    return (
        OptimizedModule(module, compiled.dynamo_ctx)
        if isinstance(compiled, _dynamo.OptimizedModule)
        else module
    )


def _accept_original_keys(module: nn.Module, state_dict: dict[str, Any], prefix: str, *args: object) -> None:
    for key in [key for key in state_dict if key.startswith(prefix)]:
        name = key[len(prefix) :]
        if not name.startswith(_PREFIX):
            state_dict[f"{prefix}{_PREFIX}{name}"] = state_dict.pop(key)


def _tell_original_keys(module: nn.Module, incompatible: Any) -> None:
    for keys in (incompatible.missing_keys, incompatible.unexpected_keys):
        keys[:] = [key.replace(_PREFIX, "") for key in keys]
