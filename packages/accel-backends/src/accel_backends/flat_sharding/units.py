"""Which modules of a model become units, each with one flat parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from accel_backends.sharding.units import ROOT, ShardGroup
from accel_ops.named_tensors import NamedTensor, named_tensors
from accel_state.errors import ConfigError

NAMED = 3
"""A message names this many parameters, and counts the rest."""


def flat_units(model: nn.Module, units: Iterable[str]) -> tuple[ShardGroup, ...]:
    """Return the units of a model, inner ones before those around them, the root last.

    A module that shares a parameter with a module outside is no unit, since a flat parameter has one owner: its
    parameters go to the unit around it.
    """
    tied = [found.names for found in named_tensors(model, include_buffers=False) if len(found.names) > 1]
    names = [name for name in dict.fromkeys(units) if not any(_is_divided(name, group) for group in tied)]
    inner_first = sorted(names, key=lambda name: -name.count("."))
    return (*(ShardGroup((name,)) for name in inner_first), ShardGroup((ROOT,)))


def check_uniform(unit: str, owned: Sequence[NamedTensor], *, use_orig_params: bool) -> None:
    """Refuse a unit whose parameters cannot be one flat parameter.

    Raises:
        ConfigError: If they differ in number format, or some are frozen and the flat parameter is all that an
            optimizer sees.
    """
    place = f"The unit `{unit}`" if unit else "The part of the model outside its units"
    frozen = [found for found in owned if not found.tensor.requires_grad]
    if not use_orig_params and frozen and len(frozen) < len(owned):
        trained = [found for found in owned if found.tensor.requires_grad]
        raise ConfigError(
            f"{place} has frozen parameters ({_listed(frozen)}) beside trained ones ({_listed(trained)}), which "
            "`use_orig_params=False` cannot flatten together. Set `use_orig_params=True` in "
            "`FullyShardedDataParallelPlugin`, or use `fsdp_version=2`."
        )
    dtypes = {found.tensor.dtype: found for found in owned}
    if len(dtypes) > 1:
        examples = ", ".join(f"`{found.names[0]}` is {dtype}" for dtype, found in dtypes.items())
        raise ConfigError(
            f"{place} has parameters of several number formats, which `fsdp_version=1` cannot flatten together: "
            f"{examples}. Convert the model to one, or use `fsdp_version=2`."
        )


def _is_divided(module: str, names: Iterable[str]) -> bool:
    """Whether some of a parameter's names are inside of a module, and some outside."""
    return len({name.startswith(f"{module}.") for name in names}) > 1


def _listed(found: Sequence[NamedTensor]) -> str:
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(f"`{one.names[0]}`" for one in found[:NAMED]) + more
