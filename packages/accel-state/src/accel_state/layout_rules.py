"""The rules of layouts, with working values if one is broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes of a model, and of its batches, that limit the layouts; None: unknown."""

    num_heads: int | None = None
    num_key_value_heads: int | None = None
    num_blocks: int | None = None
    num_experts: int | None = None
    sequence_length: int | None = None


def check_layout(
    layout: MeshLayout, *, num_processes: int | None = None, model: ModelSizes | None = None
) -> None:
    """Check a layout against the rules.

    Raises:
        ConfigError: If it breaks any; the message has a sentence for each of the `broken_rules`.
    """
    broken = broken_rules(layout, num_processes=num_processes, model=model)
    if broken:
        raise ConfigError(" ".join(broken))


def broken_rules(
    layout: MeshLayout, *, num_processes: int | None = None, model: ModelSizes | None = None
) -> list[str]:
    """Return a sentence for each rule that a layout breaks, with values that would work.

    Args:
        layout: The sizes of the axes.
        num_processes: Processes of the run.
        model: The sizes of the model.
    """
    broken = [*_of_axes(layout)]
    if num_processes is not None and layout.world_size != num_processes:
        broken.append(_of_number(layout, num_processes))
    return broken if model is None else [*broken, *_of_model(layout, model)]


def _of_axes(layout: MeshLayout) -> Iterator[str]:
    if layout.cp > 1 and layout.sp > 1:
        yield (
            f"`cp_size` ({layout.cp}) and `sp_size` ({layout.sp}) are two ways to shard a sequence. "
            "Set one of them to 1."
        )
    if layout.dp_replicate > 1 and layout.dp_shard == 1 and (layout.tp > 1 or layout.cp > 1):
        yield (
            "`tp_size` and `cp_size` above 1 cannot be combined with unsharded replicas (`dp_replicate_size` "
            f"{layout.dp_replicate}, `dp_shard_size` 1). Shard the replicas with `dp_shard_size`, or set "
            "`dp_replicate_size` to 1."
        )


def _of_number(layout: MeshLayout, num_processes: int) -> str:
    sizes = ", ".join(f"{axis}_size={size}" for axis, size in layout.sizes.items())
    fitting = [
        f"`{axis}_size={num_processes * size // layout.world_size}`"
        for axis, size in layout.sizes.items()
        if num_processes * size % layout.world_size == 0
        and (size > 1 or axis in ("dp_replicate", "dp_shard"))
    ]
    change = f", with {' or '.join(fitting)}" if fitting else ""
    return (
        f"The mesh of `ParallelismConfig` ({sizes}) is for {layout.world_size} processes, but there are "
        f"{num_processes}. Make the product of the sizes {num_processes}{change}."
    )


def _of_model(layout: MeshLayout, model: ModelSizes) -> Iterator[str]:
    sequence = model.sequence_length
    for axis, what, size in (
        ("tp", "attention heads", model.num_heads),
        ("sp", "attention heads", model.num_heads),
        ("cp", "tokens of a sequence", sequence),
        ("sp", "tokens of a sequence", sequence),
        ("ep", "experts", model.num_experts),
    ):
        number = getattr(layout, axis)
        if size is not None and size % number:
            yield (
                f"`{axis}_size` {number} does not divide the {size} {what}. Choose one that does: {_divisors(size)}."
            )
    heads = model.num_key_value_heads
    if heads is not None and heads % layout.tp and layout.tp % heads:
        yield (
            f"`tp_size` {layout.tp} neither divides the {heads} key-value heads nor is a multiple of them. Choose one "
            f"of {_divisors(heads)}, or a multiple of {heads}."
        )
    if model.num_blocks is not None and layout.pp > model.num_blocks:
        yield (
            f"`pp_size` {layout.pp} needs as many blocks, but the model has {model.num_blocks}. "
            f"Choose at most {model.num_blocks} stages."
        )


def _divisors(size: int) -> str:
    return ", ".join(str(number) for number in range(1, min(size, 64) + 1) if size % number == 0)
