"""What each rank holds of a model that is sharded by a plan: computed, without devices and without processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch import nn

from accel_backends.fsdp.groups import ROOT, shard_groups, tensors_of_groups, whole_parameters
from accel_backends.plans.plan import ParallelPlan
from accel_backends.tensor_parallel.parallel import cut_dims
from accel_backends.transforms.expert_parallel import expert_modules, without_experts
from accel_ops.named_tensors import NamedTensor, named_tensors

_FP32_BYTES = 4
_MOMENTS = 2  # running averages that AdamW keeps of each gradient


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes on one rank between two steps of training with AdamW."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(
            self.parameters + other.parameters,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
        )


@dataclass(frozen=True, slots=True)
class PlannedParameter:
    """One parameter of a unit, cut along its first dimension, where its layer is shared after that.

    Attributes:
        name: Its first name in the model.
        shape: Its whole shape.
        element_bytes: Bytes of one of its elements where it is stored.
        is_trainable: Whether it has a gradient.
        num_shards: Ranks that each copy of the model is cut over.
        is_sharded: Whether the parameter is cut; if not, each rank holds the whole.
        num_sharing: Ranks that share its layer.
        layer_dim: The dimension along which these cut it, None if each of them has the whole.
        num_expert_ranks: Ranks that cut it before it is sharded over the ranks that hold the same experts.
    """

    name: str
    shape: tuple[int, ...]
    element_bytes: int
    is_trainable: bool
    num_shards: int
    is_sharded: bool
    num_sharing: int = 1
    layer_dim: int | None = None
    num_expert_ranks: int = 1

    @property
    def num_elements(self) -> int:
        """Elements of the whole parameter."""
        return prod(self.shape)

    def layer_shape(self, sharer: int = 0) -> tuple[int, ...]:
        """Return the shape with which the rank with that number among those that share the layer computes."""
        if self.num_expert_ranks > 1:
            return self._expert_shape(0)
        return _part(self.shape, self.layer_dim, self.num_sharing, sharer)

    def shard_shape(self, shard: int, sharer: int = 0) -> tuple[int, ...]:
        """Return the shape of the part on the rank with these numbers among those it is cut over.

        As `torch.distributed.tensor.Shard` cuts: every part has as many rows as the first, until none are left.
        """
        if self.num_expert_ranks > 1:
            place, number = divmod(shard * self.num_sharing + sharer, self.num_expert_ranks)
            num_holders = self.num_shards * self.num_sharing // self.num_expert_ranks
            return _part(self._expert_shape(number), 0, num_holders, place)
        shape = self.layer_shape(sharer)
        return _part(shape, 0, self.num_shards, shard) if self.is_sharded else shape

    def bytes_on(self, shard: int, sharer: int = 0) -> Bytes:
        """Return what the rank with these numbers holds for this parameter."""
        return self._bytes(prod(self.shard_shape(shard, sharer)))

    @property
    def gathered(self) -> int:
        """The bytes of its values with which a rank computes, at most."""
        return prod(self.layer_shape()) * self.element_bytes

    @property
    def whole(self) -> Bytes:
        """What a rank would hold without sharding."""
        return self._bytes(self.num_elements)

    def _expert_shape(self, place: int) -> tuple[int, ...]:
        return _part(self.shape, 0, self.num_expert_ranks, place)

    def _bytes(self, num_elements: int) -> Bytes:
        trained = num_elements * _FP32_BYTES if self.is_trainable else 0
        return Bytes(num_elements * self.element_bytes, trained, _MOMENTS * trained)


@dataclass(frozen=True, slots=True)
class PlannedUnit:
    """Parameters that are gathered together.

    Attributes:
        modules: The modules of the unit; ``("",)`` is what no other unit has.
        is_tail: Whether they run last, and stay gathered between forward and backward pass.
        parameters: Their parameters; a tied one comes once.
    """

    modules: tuple[str, ...]
    is_tail: bool
    parameters: tuple[PlannedParameter, ...]

    @property
    def is_root(self) -> bool:
        """Whether it is what no other unit has."""
        return ROOT in self.modules

    @property
    def whole(self) -> Bytes:
        """What a rank would hold without sharding."""
        return sum((parameter.whole for parameter in self.parameters), Bytes())

    def bytes_on(self, shard: int, sharer: int = 0) -> Bytes:
        """Return what the rank with these numbers holds for this unit."""
        return sum((parameter.bytes_on(shard, sharer) for parameter in self.parameters), Bytes())

    @property
    def gathered(self) -> int:
        """The bytes of the parameters with which a rank computes, at most."""
        return sum(parameter.gathered for parameter in self.parameters)


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model as it would be sharded.

    Attributes:
        units: In the order of the model, the tail and the root last.
        num_replicas: Copies of the sharded model.
        num_shards: Ranks over which each copy is cut.
        num_sharing: Ranks that share each layer.
        buffer_bytes: Bytes of the buffers, which every rank holds.
        num_expert_ranks: Ranks over which experts are spread.
    """

    units: tuple[PlannedUnit, ...]
    num_replicas: int
    num_shards: int
    buffer_bytes: int
    num_sharing: int = 1
    num_expert_ranks: int = 1

    @property
    def whole(self) -> Bytes:
        """What a rank would hold without sharding."""
        return sum((unit.whole for unit in self.units), Bytes())

    def bytes_on(self, shard: int, sharer: int = 0) -> Bytes:
        """Return what the rank with these numbers holds; the first ones hold most."""
        return sum((unit.bytes_on(shard, sharer) for unit in self.units), Bytes())

    @property
    def largest(self) -> Bytes:
        """What the rank holds that holds most."""
        return self.bytes_on(0)

    @property
    def unsharded_gradient_bytes(self) -> int:
        """Bytes of the gradients of full tensors in fp32, of sharded parameters."""
        parameters = (one for unit in self.units for one in unit.parameters)
        return sum(
            prod(one.layer_shape()) * _FP32_BYTES for one in parameters if one.is_sharded and one.is_trainable
        )

    @property
    def gathered_bytes(self) -> int:
        """The most parameters that are whole at a time: the root, and two units that follow one another.

        While one unit computes, the next one is gathered. The tail is the last: it stays gathered from its forward to
        its backward pass, and nothing else runs in between.
        """
        root = sum(unit.gathered for unit in self.units if unit.is_root)
        passing = [unit.gathered for unit in self.units if not unit.is_root]
        return root + max((sum(passing[at : at + 2]) for at in range(len(passing))), default=0)


def plan_memory(
    model: nn.Module,
    plan: ParallelPlan,
    *,
    num_shards: int,
    num_replicas: int = 1,
    num_sharing: int = 1,
    num_expert_ranks: int = 1,
) -> PlannedModel:
    """Return what each rank holds of ``model`` if it is sharded by ``plan``.

    Trained parameters are stored in fp32, as are gradients and the state of AdamW; frozen ones stay as they are.

    Args:
        model: On any device, meta included; it stays as it is.
        plan: From `resolve_plan`.
        num_shards: Ranks over which each parameter is cut.
        num_replicas: Groups of that many ranks.
        num_sharing: Ranks that share each layer.
        num_expert_ranks: Ranks over which experts are spread; divides ``num_shards * num_sharing``.

    Raises:
        ConfigError: If layers or experts are to be shared, and the plan does not say how, or they cannot be cut so.
    """
    tensors = named_tensors(model)
    parameters = [found for found in tensors if found.is_parameter]
    whole = set(whole_parameters(model, parameters, None))
    experts = expert_modules(model, plan, num_ranks=num_expert_ranks) if num_expert_ranks > 1 else {}
    shared = without_experts(plan, experts) if experts else plan
    layer_dims = cut_dims(model, shared, num_ranks=num_sharing) if num_sharing > 1 else {}
    groups = shard_groups(
        model, parameters, units=plan.units, tail=plan.tail, whole=whole, experts=tuple(experts)
    )
    contents = tensors_of_groups(tensors, groups)
    order = {name: at for at, name in enumerate(dict(model.named_modules(remove_duplicate=False)))}
    units = [
        PlannedUnit(
            group.modules,
            group.is_tail,
            _parameters(
                found,
                whole,
                (num_shards, num_sharing, num_expert_ranks if group.has_experts else 1),
                layer_dims,
            ),
        )
        for group, found in zip(groups, contents, strict=True)
    ]
    units.sort(key=lambda unit: (unit.is_root, unit.is_tail, order[unit.modules[0]]))
    buffers = sum(found.tensor.nbytes for tensors in contents for found in tensors if not found.is_parameter)
    filled = tuple(unit for unit in units if unit.parameters)
    return PlannedModel(filled, num_replicas, num_shards, buffers, num_sharing, num_expert_ranks)


def _parameters(
    tensors: Sequence[NamedTensor],
    whole: set[str],
    num_ranks: tuple[int, int, int],
    layer_dims: Mapping[int, int],
) -> tuple[PlannedParameter, ...]:
    return tuple(
        PlannedParameter(
            found.names[0],
            tuple(found.tensor.shape),
            _FP32_BYTES if found.tensor.requires_grad else found.tensor.element_size(),
            found.tensor.requires_grad,
            num_ranks[0],
            found.names[0] not in whole,
            num_ranks[1],
            layer_dims.get(id(found.tensor)),
            num_ranks[2],
        )
        for found in tensors
        if found.is_parameter
    )


def _part(shape: tuple[int, ...], dim: int | None, num_parts: int, place: int) -> tuple[int, ...]:
    """Return the shape of one of the parts into which a tensor is cut along ``dim``."""
    if dim is None:
        return shape
    size = -(-shape[dim] // num_parts)
    return (*shape[:dim], max(0, min(size, shape[dim] - place * size)), *shape[dim + 1 :])
