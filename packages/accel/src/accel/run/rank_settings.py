"""Settings that must be the same on all ranks, compared when a model is prepared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from accel_backends.strategies.bundle import Bundle
from accel_data import DataLoaderConfiguration
from accel_ops.agreement.calls import Call
from accel_ops.agreement.exchange import must_check
from accel_ops.collectives.objects import gather_each
from accel_ops.transport import current_transport
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user

_NUM_SHOWN_RANKS = 8


def prepare(settings: Mapping[str, str], required: Sequence[str]) -> None:
    """Compare the settings of all ranks, which must call this; one collective if they are equal.

    Args:
        settings: Values by their names.
        required: Names of those without which the ranks cannot train together.

    Raises:
        ConfigError: On every rank, if a required setting differs; other differences are warnings.
    """
    transport = current_transport()
    if transport.world_size == 1 or not must_check(transport, ()):
        return
    call = Call(prepare)
    text = json.dumps([settings, required])
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    if len(set(gather_each(transport, call, digest))) == 1:
        return
    of_ranks = [json.loads(other) for other in gather_each(transport, call, text)]
    names = {name: None for each, _ in of_ranks for name in each}
    values = {name: [each.get(name, "missing") for each, _ in of_ranks] for name in names}
    differing = {name: _listed(each) for name, each in values.items() if len(set(each)) > 1}
    needed = {name for _, each in of_ranks for name in each}
    errors = [f"`{name}` is {listed}" for name, listed in differing.items() if name in needed]
    if errors:
        raise ConfigError(
            f"The ranks cannot train together: {'; '.join(errors)}. Set the same on every rank. If a data set is to "
            "differ between ranks, leave its loader out of `prepare`, or set `even_batches=False` and train in "
            "`join_uneven_inputs`."
        )
    if differing:
        shown = "; ".join(f"`{name}` is {listed}" for name, listed in differing.items())
        warn_user(f"The ranks were given different settings: {shown}. Set the same on every rank.")


def settings_of(
    bundle: Bundle, loading: DataLoaderConfiguration, *, num_shards: int
) -> tuple[dict[str, str], list[str]]:
    """Return the settings of what is to be prepared, and the names of those that are required.

    Args:
        bundle: The objects.
        loading: How loaders are prepared.
        num_shards: Into how many parts a loader is split.
    """
    from accel import __version__

    settings = {"torch.__version__": str(torch.__version__), "accel.__version__": __version__}
    required: list[str] = []
    for number, optimizer in enumerate(bundle.optimizers):
        if isinstance(optimizer, torch.optim.Optimizer):
            settings |= _settings_of_optimizer(optimizer, f"optimizer {number}")
    # With `dispatch_batches`, only rank 0 reads.
    for number, loader in enumerate(() if loading.dispatch_batches else bundle.loaders):
        name = f"loader {number}"
        num_batches = _length(loader)
        settings[f"batch_size of {name}"] = repr(loader.batch_size)
        settings[f"number of batches of {name}"] = repr(num_batches)
        if loading.even_batches and num_batches is not None:
            num_parts = 1 if loading.split_batches else num_shards
            num_steps = num_batches // num_parts if loader.drop_last else -(-num_batches // num_parts)
            settings[f"number of steps of {name}"] = repr(num_steps)
            required.append(f"number of steps of {name}")
    return settings, required


def _settings_of_optimizer(optimizer: torch.optim.Optimizer, name: str) -> dict[str, str]:
    inner = getattr(optimizer, "optimizer", optimizer)
    settings = {f"class of {name}": type(inner).__name__}
    for number, group in enumerate(inner.param_groups):
        for key, value in group.items():
            if key != "params" and _is_plain(value):
                settings[f"{key} of group {number} of {name}"] = repr(value)
    return settings


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _length(loader: DataLoader[Any]) -> int | None:
    if isinstance(loader.dataset, IterableDataset):
        return None  # ranks may read streams of their own
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):  # of a sampler without a length
        return None


def _listed(values: Sequence[str]) -> str:
    """Return each value with the ranks that have it."""
    parts = []
    for value in dict.fromkeys(values):
        ranks = [str(rank) for rank, other in enumerate(values) if other == value]
        more = len(ranks) - _NUM_SHOWN_RANKS
        shown = ", ".join(ranks[:_NUM_SHOWN_RANKS]) + (f" and {more} more" if more > 0 else "")
        parts.append(f"{value} on rank{'s' if len(ranks) > 1 else ''} {shown}")
    return ", ".join(parts)
