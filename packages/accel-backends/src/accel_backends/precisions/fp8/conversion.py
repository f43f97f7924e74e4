"""Which layers of a model were exchanged for those of a library, and why others were not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from accel_state.errors import ConfigError

_NUM_NAMED = 3

WhyNot = Callable[[str, nn.Linear], str | None]
"""Called with the name of a layer and the layer: why it stays as it is, None if it is exchanged."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of the linear layers of one model.

    Attributes:
        model: Name of its class.
        converted: Names of the layers that compute in 8 bits.
        kept: Names of the others, and why each of them does not.
        share: Part of the weights of linear layers that is in converted ones, from 0 to 1.
    """

    model: str
    converted: tuple[str, ...]
    kept: Mapping[str, str]
    share: float

    def __str__(self) -> str:
        num_layers = len(self.converted) + len(self.kept)
        said = (
            f"{len(self.converted)} of {num_layers} linear layers of the {self.model} compute in 8 bits, with "
            f"{self.share:.0%} of their weights."
        )
        return f"{said} Not converted: {self.reasons()}." if self.kept else said

    def reasons(self) -> str:
        """Return the layers that stay as they are, grouped by reason; of many, the first few are named."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.kept.items():
            by_reason.setdefault(reason, []).append(name)
        return "; ".join(f"{_listed(names)} ({reason})" for reason, names in by_reason.items())

    def check(self, *, way_out: str) -> None:
        """Refuse a model of which nothing is converted.

        Raises:
            ConfigError: Naming the reasons and ``way_out``.
        """
        if self.converted:
            return
        if not self.kept:
            raise ConfigError(
                f"`mixed_precision=fp8` has nothing to convert: the {self.model} has no linear layer. Use "
                "`mixed_precision=bf16`."
            )
        raise ConfigError(
            f"`mixed_precision=fp8` converts none of the {len(self.kept)} linear layers of the {self.model}: "
            f"{self.reasons()}. {way_out}"
        )


def choose_layers(model: nn.Module, why_not: WhyNot) -> Conversion:
    """Look at every linear layer of ``model`` and say which are to be converted.

    Layers that no library can take the place of stay as they are: subclasses of `nn.Linear`, which have code of their
    own, the model itself, and a layer that stands at several places.
    """
    num_places = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    converted: list[str] = []
    kept: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        sizes[name] = layer.in_features * layer.out_features
        reason = _why_never(name, layer, num_places[id(layer)]) or why_not(name, layer)
        if reason is None:
            converted.append(name)
        else:
            kept[name] = reason
    share = sum(sizes[name] for name in converted) / (sum(sizes.values()) or 1)
    return Conversion(type(model).__name__, tuple(converted), kept, share)


def odd_shape(layer: nn.Linear, multiple: int) -> str | None:
    """Return why 8-bit products cannot take the weights of ``layer``, None if they can."""
    if layer.in_features % multiple == 0 and layer.out_features % multiple == 0:
        return None
    return f"{layer.in_features} → {layer.out_features} features are not multiples of {multiple}"


def replace_layer(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put ``new`` in the place of the submodule ``name``, in the same mode."""
    parent, _, key = name.rpartition(".")
    new.train(model.get_submodule(name).training)
    model.get_submodule(parent)._modules[key] = new


def _why_never(name: str, layer: nn.Linear, num_places: int) -> str | None:
    if type(layer) is not nn.Linear:
        return f"a `{type(layer).__name__}` has code of its own"
    if not name:
        return "it is the model itself, not a layer of it"
    return "it stands at several places of the model" if num_places > 1 else None


def _listed(names: list[str]) -> str:
    named = ", ".join(f"`{name}`" for name in names[:_NUM_NAMED])
    return f"{named} and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else named
