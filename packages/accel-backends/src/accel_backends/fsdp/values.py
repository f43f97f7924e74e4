"""The values of a model before it is sharded: every rank receives those of rank 0, or reads its rows from files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from accel_checkpoint.formats.weight_files import WeightRows
from accel_checkpoint.pieces import local_pieces
from accel_checkpoint.ranks.agreement import Agreement, DeferredError
from accel_ops.named_tensors import NamedTensor
from accel_state.errors import CheckpointError, ConfigError, did_you_mean
from accel_state.logging import get_logger

logger = get_logger(__name__)

_ALIGNMENT = 64


def check_same_model(tensors: Sequence[NamedTensor], *, device: torch.device) -> list[NamedTensor]:
    """Return the tensors that rank 0 holds on the meta device; refuse a model that the ranks built differently.

    Every rank must call it.

    Args:
        tensors: All parameters and buffers of the model.
        device: Where collectives run.

    Raises:
        ConfigError: On every rank, naming the ranks that differ from rank 0.
    """
    structure = repr([(found.names, tuple(found.tensor.shape), found.tensor.dtype) for found in tensors])
    digest = int.from_bytes(hashlib.sha256(structure.encode()).digest()[:7])
    own = torch.tensor([digest], device=device)
    of_rank = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(of_rank, own)
    digests = [int(found) for found in of_rank]
    others = [str(rank) for rank, one in enumerate(digests) if one != digests[0]]
    if others:
        raise ConfigError(
            f"The model on rank {', '.join(others)} is not the model on rank 0: names, shapes or types of its "
            "parameters and buffers differ. Build the same model on every rank."
        )
    is_missing = torch.tensor([found.tensor.is_meta for found in tensors], dtype=torch.uint8, device=device)
    if len(tensors):
        dist.broadcast(is_missing, src=0)
    return [found for found, missing in zip(tensors, is_missing.tolist(), strict=True) if missing]


def refuse_missing(missing: Sequence[NamedTensor]) -> None:
    """Check that no tensor is without values on every rank.

    Raises:
        ConfigError: If there is one; names the first.
    """
    if missing:
        raise ConfigError(
            f"`{missing[0].names[0]}` has no values on rank 0: it is on the meta device. Build the model with its "
            "weights on rank 0; the other ranks need none. Weights may also stay in safetensors files that all ranks "
            "can read: `FullyShardedDataParallelPlugin(load_weights_from=folder)`."
        )


def initialize(tensors: Sequence[NamedTensor], init_module: Callable[[nn.Module], None]) -> None:
    """Let ``init_module`` give the modules their values that hold ``tensors`` on the meta device; ties stay.

    Raises:
        ConfigError: If it leaves a tensor on the meta device.
    """
    waiting = {module: None for found in tensors if found.tensor.is_meta for module, _ in found.places}
    for module in waiting:
        init_module(module)
    for found in tensors:
        module, key = found.places[0]
        value = (module._parameters if found.is_parameter else module._buffers)[key]
        if value is None or value.is_meta:
            raise ConfigError(
                f"`param_init_fn` left `{found.names[0]}` on the meta device. Call "
                "`module.to_empty(device=..., recurse=False)` in it, and fill the tensors of the module."
            )
        if value is not found.tensor:
            replace_tensor(found, value.detach())


@torch.no_grad()
def take_values_of_rank_0(tensors: Sequence[NamedTensor], *, device: torch.device) -> None:
    """Broadcast the values of rank 0, which the other ranks may hold on the meta device.

    Every rank must call it with the same tensors in the same order. They end up on ``device``, as the same
    objects where they were real, so that optimizers keep theirs.
    """
    pending = []
    for found in tensors:
        if found.tensor.is_meta:
            replace_tensor(found, torch.empty_like(found.tensor, device=device))
        elif found.tensor.device != device:
            found.tensor.data = found.tensor.data.to(device)
        values = found.tensor.data
        if not values.is_contiguous():
            values = found.tensor.data = values.contiguous()
        if values.numel():
            if type(values) is torch.Tensor:
                # As bytes: gloo and NCCL lack 16-bit integers, gloo 8-bit floats.
                values = values.view(-1).view(torch.uint8)
            pending.append(dist.broadcast(values, src=0, async_op=True))
    for work in pending:
        work.wait()


def replace_tensor(found: NamedTensor, values: torch.Tensor) -> None:
    """Put real memory in place of a parameter or buffer on the meta device, at all places that hold it."""
    if found.is_parameter:
        values = nn.Parameter(values, requires_grad=found.tensor.requires_grad)
    for module, key in found.places:
        if found.is_parameter:
            module._parameters[key] = values  # type: ignore[assignment]
        else:
            module._buffers[key] = values
    found.tensor = values


class ReceiveBuffer:
    """One piece of memory for all groups of parameters that this rank holds on the meta device.

    Allocated again for each group, what a group releases would be fragmented by the shards that stay, and on the CPU
    nearly a whole model would pile up.
    """

    def __init__(self, *, device: torch.device) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)

    def lend(self, group: Sequence[NamedTensor]) -> None:
        """Replace parameters on the meta device by ones in the buffer, whose content is undefined.

        Those of the group before must not be used any more.
        """
        on_meta = [found for found in group if found.tensor.is_meta]
        num_bytes, begin = sum(_padded(found.tensor) for found in on_meta), 0
        if num_bytes > len(self._memory):
            self._memory = self._memory.new_empty(0)  # before the larger one is allocated
            self._memory = self._memory.new_empty(num_bytes)
        for found in on_meta:
            tensor = found.tensor
            values = self._memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            replace_tensor(found, values)
            begin += _padded(tensor)


def _padded(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def values_in_files(
    model: nn.Module,
    tensors: Sequence[NamedTensor],
    missing: Sequence[NamedTensor],
    files: str | os.PathLike[str] | None,
) -> FileValues | None:
    """Return where the values come from that rank 0 does not have, None if it has all."""
    if files is None:
        refuse_missing(missing)
        return None
    if missing:
        return FileValues(files, tensors, missing)
    logger.warning(
        "`load_weights_from` has no effect on the %s: rank 0 has all its values. To read them from files, build "
        "the model on the meta device, `with init_empty_weights(include_buffers=False):`.",
        type(model).__name__,
    )
    return None


class FileValues:
    """The values of tensors in safetensors files. Every rank must make it; the files must be there on every rank.

    Args:
        checkpoint: A safetensors file, an index, or a folder with one of them.
        tensors: All parameters and buffers of the model.
        missing: Those of them that rank 0 has no values of, which all come from the files.

    Raises:
        CheckpointError: On every rank, if a tensor is not in the files or has another shape there, the files have
            tensors that the model has not, or a rank cannot read them.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str],
        tensors: Sequence[NamedTensor],
        missing: Sequence[NamedTensor],
    ) -> None:
        self._checkpoint = checkpoint
        self._error: CheckpointError | OSError | None = None
        opening = self._agreement("open")
        with opening:
            self._rows = WeightRows(checkpoint)
            _check_fit(self._rows, checkpoint, tensors, missing)
        opening.agree()

    def fill(self, found: NamedTensor, *, device: torch.device) -> None:
        """Read the values of a replicated tensor, which may be replaced by another on ``device``."""
        if found.tensor.is_meta:
            replace_tensor(found, torch.empty_like(found.tensor, device=device))
        elif found.tensor.device != device:
            found.tensor.data = found.tensor.data.to(device)
        if not found.tensor.is_contiguous():
            found.tensor.data = found.tensor.data.contiguous()
        self._read(found.tensor.data, found.names, 0)

    def fill_shard(self, found: NamedTensor, *, device: torch.device) -> None:
        """Read this rank's rows of a sharded parameter; on the meta device they get memory first."""
        module, key = found.places[0]
        shard: object = module._parameters[key]
        assert isinstance(shard, DTensor)
        if shard.to_local().is_meta:
            found.tensor = shard
            replace_tensor(found, torch.empty_like(shard.detach(), device=device))
            shard = found.tensor
        for offset, part in local_pieces(shard):
            self._read_piece(part, offset, shard.shape[1:], found.names)

    def finish(self) -> None:
        """Raise on every rank if one could not read; every rank must call it after all its tensors are filled."""
        reading = self._agreement("read")
        with reading:
            if self._error is not None:
                raise self._error
        reading.agree()

    def _read_piece(
        self, part: torch.Tensor, offset: tuple[int, ...], row_shape: torch.Size, names: Sequence[str]
    ) -> None:
        if part.shape[1:] == row_shape and part.is_contiguous():
            self._read(part, names, offset[0])
            return
        # Files hold whole rows, of which tensor parallelism leaves this rank some columns.
        rows = part.new_empty((len(part), *row_shape))
        self._read(rows, names, offset[0])
        for dim, begin in list(enumerate(offset))[1:]:
            rows = rows.narrow(dim, begin, part.shape[dim])
        part.copy_(rows)

    def _read(self, part: torch.Tensor, names: Sequence[str], first_row: int) -> None:
        if self._error is not None:
            return
        name = next(name for name in names if name in self._rows)
        try:
            self._rows.read_into(part, name, first_row=first_row)
        except (CheckpointError, OSError) as error:
            # The other ranks go on to collectives, so that this one must too; `finish` raises.
            self._error = error

    def _agreement(self, what: str) -> DeferredError:
        agreement = Agreement(_gathered, rank=dist.get_rank(), world_size=dist.get_world_size())
        failed = f"`load_weights_from` is `{self._checkpoint}`, which not every rank could {what}"
        return DeferredError(agreement.agree, f"{what} weights", failed=failed)


def _check_fit(
    rows: WeightRows,
    checkpoint: str | os.PathLike[str],
    tensors: Sequence[NamedTensor],
    missing: Sequence[NamedTensor],
) -> None:
    """Check that files have the tensors of the model in their shapes, and no others; errors name all differences."""
    absent = [found for found in missing if not any(name in rows for name in found.names)]
    known = {name for found in tensors for name in found.names}
    used = {rows.second_names[name] for name in known & rows.second_names.keys()}
    unexpected = sorted(set(rows) - known - used)
    differences = []
    for found in missing:
        for name in found.names:
            if name in rows and rows.shape(name) != tuple(found.tensor.shape):
                differences.append(
                    f"`{name}` has the shape {rows.shape(name)} in the files and {tuple(found.tensor.shape)} in the "
                    "model"
                )
    parts = [found.names[0] for found in absent if found.is_persistent]
    if parts:
        differences.append(f"on the meta device on rank 0 and not in the files: {_listed(parts)}")
    unsaved = [found.names[0] for found in absent if not found.is_persistent]
    if unsaved:
        differences.append(
            f"buffers on the meta device that are not part of a state dict, and so in no file: {_listed(unsaved)}. "
            "Build buffers for real: `init_empty_weights(include_buffers=False)`"
        )
    if unexpected:
        hints = ", ".join(f"`{name}`{did_you_mean(name, parts)}" for name in unexpected)
        differences.append(f"not in the model: {hints}")
    if differences:
        raise CheckpointError(
            "\n- ".join(
                [f"`load_weights_from` is `{checkpoint}`, which does not fit the model:", *differences]
            )
        )


def _gathered(report: list[str]) -> list[str]:
    of_rank: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_rank, report)
    return [one for reports in of_rank for one in reports]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
