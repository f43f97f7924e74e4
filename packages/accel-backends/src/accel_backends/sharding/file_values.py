"""Values of a model that no rank holds: each rank reads its own rows of them from safetensors files."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from accel_backends.sharding.parts import local_pieces
from accel_backends.sharding.values import replace_tensor
from accel_checkpoint.formats.weight_files import WeightRows
from accel_checkpoint.pieces import Piece
from accel_checkpoint.ranks.agreement import Agreement, DeferredError
from accel_ops.named_tensors import NamedTensor
from accel_state.errors import CheckpointError, did_you_mean


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
        for piece in local_pieces(shard):
            self._read_piece(piece, found.names)

    def finish(self) -> None:
        """Raise on every rank if one could not read; every rank must call it after all its tensors are filled."""
        reading = self._agreement("read")
        with reading:
            if self._error is not None:
                raise self._error
        reading.agree()

    def _read_piece(self, piece: Piece, names: Sequence[str]) -> None:
        rows = piece.local
        if rows.shape[1:] == piece.shape[1:] and rows.is_contiguous():
            self._read(rows, names, piece.offset[0])
            return
        # Files hold whole rows, of which tensor parallelism leaves this rank some columns.
        rows = rows.new_empty((len(rows), *piece.shape[1:]))
        self._read(rows, names, piece.offset[0])
        for dim, begin in list(enumerate(piece.offset))[1:]:
            rows = rows.narrow(dim, begin, piece.local.shape[dim])
        piece.local.copy_(rows)

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
