"""The auto-wrap policies of FSDP: ways to choose units that a user asks for by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from accel_backends.plans.model_names import ModelNames, NamedModule, nearest
from accel_backends.plans.repeated_blocks import input_embedding
from accel_backends.plans.transformers_models import declared_embeddings, no_split_classes
from accel_state.errors import ConfigError, UnknownNameError

#: What torch calls a policy: ``policy(module=, recurse=, nonwrapped_numel=)``.
TorchPolicy = Callable[..., bool]


class UnitsPolicy(Protocol):
    """Chooses the units of a model."""

    must_find_units: ClassVar[bool]  # whether it is an error if the model ends up without units

    def fields(self, names: ModelNames) -> dict[str, Any]:
        """Return the fields of a plan that the policy decides; without ``units`` it leaves them to the model."""
        ...


@dataclass(frozen=True, slots=True)
class TransformerBased:
    """Every module of the classes named is a unit, and so is the input embedding.

    Attributes:
        class_names: By default those that the model declares in ``_no_split_modules``; a model that declares none has
            its other plans asked.
    """

    class_names: tuple[str, ...] = ()

    must_find_units: ClassVar[bool] = True

    def fields(self, names: ModelNames) -> dict[str, Any]:
        """Return the units.

        Raises:
            ConfigError: If the model has no module of a class.
        """
        classes = set(self._known(names) if self.class_names else no_split_classes(names))
        blocks = [named for named in names if named.class_name in classes and named.num_parameters]
        if not blocks:
            return {}
        inferred = input_embedding(names, blocks)
        embeddings = declared_embeddings(names) or ([] if inferred is None else [inferred])
        free = [found for found in embeddings if not any(found.is_inside(block) for block in blocks)]
        units = {*blocks, *free}
        return {"units": tuple(named for named in names if named in units)}

    def _known(self, names: ModelNames) -> tuple[str, ...]:
        known = names.class_names()
        for name in self.class_names:
            if name not in known:
                raise ConfigError(
                    f"`{name}` in `transformer_cls_names_to_wrap` is the class of no module with parameters in "
                    f"`{type(names.model).__name__}`.{nearest(name, known)} Its classes are {', '.join(known)}. "
                    "Name some of them."
                )
        return self.class_names


@dataclass(frozen=True, slots=True)
class SizeBased:
    """The smallest modules that have at least so many parameters are units, and so is what is left above them."""

    min_num_params: int = 100_000_000

    must_find_units: ClassVar[bool] = False

    def fields(self, names: ModelNames) -> dict[str, Any]:
        """Return the units; there is no tail."""
        from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

        return CallableBased(
            functools.partial(size_based_auto_wrap_policy, min_num_params=self.min_num_params)
        ).fields(names)


@dataclass(frozen=True, slots=True)
class NoWrap:
    """The whole model is one unit."""

    must_find_units: ClassVar[bool] = False

    def fields(self, names: ModelNames) -> dict[str, Any]:
        """Return no units and no tail."""
        return {"units": (), "tail": ()}


@dataclass(frozen=True, slots=True)
class CallableBased:
    """The units are chosen by a function as torch's `FullyShardedDataParallel` takes it.

    Attributes:
        policy: Called as ``policy(module=…, recurse=True, nonwrapped_numel=…)`` to ask whether to look into a module,
            then with ``recurse=False`` whether it is a unit, where the number counts what is in no unit yet.
    """

    policy: TorchPolicy

    must_find_units: ClassVar[bool] = False

    def fields(self, names: ModelNames) -> dict[str, Any]:
        """Return the units; there is no tail."""
        chosen: set[NamedModule] = set()
        self._visit(names, names.root, chosen)
        return {"units": tuple(named for named in names if named in chosen), "tail": ()}

    def _visit(self, names: ModelNames, named: NamedModule, chosen: set[NamedModule]) -> int:
        """Add the units in a module to ``chosen`` and return how many parameters they hold."""
        if not self.policy(module=named.module, recurse=True, nonwrapped_numel=named.num_parameters):
            return 0
        taken = sum(self._visit(names, child, chosen) for child in named.children)
        left = named.num_parameters - taken
        if named is names.root or not self.policy(module=named.module, recurse=False, nonwrapped_numel=left):
            return taken
        if named.is_list:
            raise ConfigError(
                f"`auto_wrap_policy` chose `{named.name}`, a `{named.class_name}`, which is never called, so nothing "
                "could gather it. Let it choose the modules in it."
            )
        chosen.add(named)
        return named.num_parameters


#: The names in ``FSDP_AUTO_WRAP_POLICY`` and ``auto_wrap_policy``.
POLICY_NAMES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")


def units_policy(
    policy: str | TorchPolicy | None,
    *,
    class_names: Sequence[str] | None = None,
    min_num_params: int | None = None,
) -> UnitsPolicy | None:
    """Return the policy that the settings of FSDP name, None if they name none.

    Args:
        policy: One of `POLICY_NAMES`, in any case; or a function with the arguments of torch's policies.
        class_names: ``transformer_cls_names_to_wrap``.
        min_num_params: ``min_num_params``; torch's 100 million by default, and 0 for no unit but the model.

    Raises:
        ConfigError: If the name is unknown, or it is no policy.
    """
    if policy is None:
        return None
    if callable(policy):
        return CallableBased(policy)
    if not isinstance(policy, str):
        raise ConfigError(
            f"`auto_wrap_policy` must be one of {', '.join(POLICY_NAMES)}, or a function with the arguments `module`, "
            f"`recurse` and `nonwrapped_numel`, got {policy!r}."
        )
    name = policy.upper()
    if name == "TRANSFORMER_BASED_WRAP":
        return TransformerBased(tuple(class_names or ()))
    if name == "NO_WRAP" or (name == "SIZE_BASED_WRAP" and min_num_params == 0):
        return NoWrap()
    if name == "SIZE_BASED_WRAP":
        return SizeBased() if min_num_params is None else SizeBased(min_num_params)
    raise UnknownNameError.of("auto-wrap policy", policy, POLICY_NAMES)
