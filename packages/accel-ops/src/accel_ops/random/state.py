"""All random number generators of a process as plain tensors, numbers and strings, and back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from accel_state.devices import device_backend_of
from accel_state.errors import CheckpointError, StateError
from accel_state.runtime import current_runtime, has_runtime

#: What generators and the functions above them raise when they are given something that is no state of theirs.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def capture_rng_states() -> dict[str, dict[str, Any]]:
    """Return the state of Python's, NumPy's, torch's CPU and this process's device generators.

    The result holds tensors, numbers, strings and ``None`` only, so it can be written without pickling code
    (``torch.load(weights_only=True)`` reads it). The device is that of the runtime; without one there is
    only the CPU.
    """
    states = {
        "python": _capture_python(),
        "numpy": _capture_numpy(),
        "torch": {"state": torch.get_rng_state()},
    }
    device = _device()
    if device is not None:
        states[device.type] = {"state": device_backend_of(device).rng.get_state().cpu()}
    return states


def restore_rng_states(states: Mapping[str, Mapping[str, Any]], *, strict: bool = True) -> None:
    """Set every generator to its captured state; nothing is changed if an error is raised.

    Args:
        states: Captured states.
        strict: Every generator of this process must have a state, and every state a generator. Otherwise
            those that fit are restored.

    Raises:
        CheckpointError: If one is missing or left over, or is none of such a generator.
    """
    device = _device()
    present = ["python", "numpy", "torch", *([device.type] if device is not None else [])]
    missing = [name for name in present if name not in states]
    left_over = [name for name in states if name not in present]
    if strict and missing:
        raise CheckpointError(
            f"The random state of `{', '.join(missing)}` is missing, so the numbers drawn from here on would "
            f"differ. There is: {', '.join(states)}. Restore it on the kind of device it was captured on, "
            "or pass `strict=False`."
        )
    if strict and left_over:
        raise CheckpointError(
            f"There is a random state of `{', '.join(left_over)}`, which this process does not use. It uses: "
            f"{', '.join(present)}. Restore it on the kind of device it was captured on, "
            "or pass `strict=False`."
        )
    before = capture_rng_states()
    for name in present:
        if name not in states:
            continue
        try:
            _restore_one(name, states[name], device)
        except _DAMAGE as error:
            for changed in present[: present.index(name) + 1]:
                _restore_one(changed, before[changed], device)
            raise CheckpointError(
                f"The random state of `{name}` cannot be restored: {error}. It is damaged, or was captured with "
                "another release of what draws the numbers. Leave it out and pass `strict=False` to go on without."
            ) from error


def _restore_one(name: str, state: Mapping[str, Any], device: torch.device | None) -> None:
    if name == "python":
        random.setstate((state["version"], tuple(state["state"].tolist()), state["gauss_next"]))
    elif name == "numpy":
        _restore_numpy(state)
    elif name == "torch":
        torch.set_rng_state(state["state"])
    else:
        assert device is not None
        device_backend_of(device).rng.set_state(state["state"])


def _device() -> torch.device | None:
    """Return this process's device if it has generators of its own."""
    device = current_runtime().device if has_runtime() else torch.device("cpu")
    return device if device.type != "cpu" else None


def _capture_python() -> dict[str, Any]:
    version, state, gauss_next = random.getstate()
    return {
        "version": version,
        "state": torch.tensor(state, dtype=torch.int64, device="cpu"),
        "gauss_next": gauss_next,
    }


def _capture_numpy() -> dict[str, Any]:
    whole = np.random.get_state(legacy=False)
    assert isinstance(whole, dict)
    if whole["bit_generator"] != "MT19937":
        raise StateError(
            f"NumPy's global generator is a `{whole['bit_generator']}`; only NumPy's own, `MT19937`, can be "
            "captured. Use a `numpy.random.Generator` of your own beside it."
        )
    return {
        "key": torch.from_numpy(whole["state"]["key"].astype(np.int64)),
        "pos": int(whole["state"]["pos"]),
        "has_gauss": int(whole["has_gauss"]),
        "gauss": float(whole["gauss"]),
    }


def _restore_numpy(state: Mapping[str, Any]) -> None:
    key = state["key"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, state["pos"], state["has_gauss"], state["gauss"]))
