"""Settings that must agree on the ranks that train one model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import IterableDataset

from accel_backends.strategies.bundle import Bundle
from accel_data import DataLoaderConfiguration
from accel_ops.agreement import Call, must_check
from accel_ops.objects import gather_each
from accel_ops.transport import current_transport
from accel_state import AcceleratorState, current_runtime
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user

_REQUIRED = ("mixed_precision", "gradient_accumulation_steps", "number of steps")
_PLAIN = (bool, int, float, str, tuple, list, type(None))


def prepare(bundle: Bundle, loading: DataLoaderConfiguration, *, num_steps: int) -> None:
    """Compare the settings of all ranks. Every rank must call it.

    Raises:
        ConfigError: On every rank, if they could not train together; other differences are a warning.
    """
    transport = current_transport()
    if not must_check(transport, ()):
        return
    local = {"mixed_precision": AcceleratorState().mixed_precision, "gradient_accumulation_steps": num_steps}
    local |= _settings_of(bundle, loading)
    of_ranks = gather_each(transport, Call(prepare), {name: str(value) for name, value in local.items()})
    columns = {name: [each.get(name, "missing") for each in of_ranks] for each in of_ranks for name in each}
    columns = {name: values for name, values in columns.items() if len(set(values)) > 1}
    listed = "; ".join(f"`{name}` is {_by_value(values)}" for name, values in columns.items())
    if any(name.startswith(_REQUIRED) for name in columns):
        raise ConfigError(
            f"The ranks cannot train together: {listed}. Set the same on every rank. If a data set is to differ, "
            "leave its loader out of `prepare`, or set `even_batches=False` and train in `join_uneven_inputs`."
        )
    if columns:
        warn_user(f"The ranks were given different settings: {listed}. Set the same on every rank.")


def _settings_of(bundle: Bundle, loading: DataLoaderConfiguration) -> dict[str, Any]:
    from accel import __version__

    settings: dict[str, Any] = {"torch.__version__": torch.__version__, "accel.__version__": __version__}
    for number, optimizer in enumerate(bundle.optimizers):
        if isinstance(optimizer, torch.optim.Optimizer):
            settings[f"class of optimizer {number}"] = type(optimizer).__name__
            for index, group in enumerate(optimizer.param_groups):
                for key, value in group.items():
                    if key != "params" and isinstance(value, _PLAIN):
                        settings[f"{key} of group {index} of optimizer {number}"] = value
    # With `dispatch_batches`, only rank 0 reads.
    for number, loader in enumerate(() if loading.dispatch_batches else bundle.loaders):
        settings[f"batch_size of loader {number}"] = loader.batch_size
        if isinstance(loader.dataset, IterableDataset):
            continue
        with suppress(TypeError, NotImplementedError, AttributeError):  # of a sampler without a length
            num_batches = settings[f"number of batches of loader {number}"] = len(loader)
            if loading.even_batches:
                parts = 1 if loading.split_batches else current_runtime().layout.num_data_ranks
                num_steps = num_batches // parts if loader.drop_last else -(-num_batches // parts)
                settings[f"number of steps of loader {number}"] = num_steps
    return settings


def _by_value(values: Sequence[str]) -> str:
    ranks = {value: [str(rank) for rank, other in enumerate(values) if other == value] for value in values}
    return ", ".join(
        f"{value} on rank{(some[1:] and 's') or ''} {', '.join(some)}" for value, some in ranks.items()
    )
