"""The state of a loader as the content of a checkpoint file, in a form that torchdata reads and writes too.

`Accelerator.save_state` writes `to_file` and `Accelerator.load_state` reads it with `load_into`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_data.loaders.prepared import PreparedLoader
from accel_state.errors import CheckpointError

_OWN_MARK = "accel_loader"
FORMAT = 1
_NUM_YIELDED = "_num_yielded"
_SNAPSHOT = "_snapshot"


def to_file(loader: Any, *, is_under_way: bool) -> dict[str, Any]:
    """Return the content of a loader's file.

    Args:
        loader: With `state_dict`.
        is_under_way: Whether a pass over it has begun and not ended.
    """
    state = loader.state_dict()
    content = {_OWN_MARK: FORMAT, "is_under_way": is_under_way, "state": state}
    if not isinstance(loader, PreparedLoader):
        return content
    num_batches = state["samples"] // loader.total_batch_size if is_under_way else 0
    return {**_for_torchdata(num_batches), **content}


def load_into(loader: Any, content: Any, *, position: bool, file_name: str) -> bool:
    """Resume ``loader`` from the content of its file, and return whether a pass was under way when it was saved.

    A file of torchdata's `StatefulDataLoader`, which is what Accelerate writes, holds the number of batches but
    not their order.

    Args:
        loader: A prepared loader.
        content: What the file holds.
        position: Resume in the middle of the epoch, if it was saved there. If False the epoch restarts.
        file_name: For messages.

    Raises:
        CheckpointError: If the content is not the state of a loader.
    """
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"`{file_name}` holds a {type(content).__name__}, not the state of a loader. "
            "Copy the checkpoint again."
        )
    if _OWN_MARK in content:
        loader.load_state_dict(content["state"], position=position and content["is_under_way"])
        return bool(content["is_under_way"])
    num_batches = _batches_by_torchdata(content)
    if num_batches is None or not isinstance(loader, PreparedLoader):
        raise CheckpointError(
            f"`{file_name}` was written neither by this package nor by torchdata, so the position in the data is "
            "unknown. Skip the batches that were read with `skip_first_batches`."
        )
    if position:
        loader.load_state_dict(loader.state_after(num_batches), position=True)
    return num_batches > 0


def _for_torchdata(num_batches: int) -> dict[str, Any]:
    """Return the state of a `StatefulDataLoader` without workers (torchdata 0.11)."""
    return {
        "_index_sampler_state": None,
        "_sampler_iter_state": None,
        "_sampler_iter_yielded": num_batches,
        _NUM_YIELDED: num_batches,
        "_IterableDataset_len_called": None,
        "_shared_seed": None,
        "fetcher_state": None,
        "dataset_state": None,
        "_iterator_finished": False,
    }


def _batches_by_torchdata(content: Mapping[str, Any]) -> int | None:
    """Return how many batches a `StatefulDataLoader` had yielded; None if it did not write the content."""
    if content.get("_iterator_finished") is True:
        return 0
    snapshot = content.get(_SNAPSHOT)
    if isinstance(snapshot, Mapping):  # with workers
        counts = [snapshot.get("_snapshot_step"), content.get("_steps_since_snapshot")]
    else:
        counts = [content.get(_NUM_YIELDED)]
    numbers = [count for count in counts if isinstance(count, int)]
    return sum(numbers) if len(numbers) == len(counts) else None
