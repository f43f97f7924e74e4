"""Which modules have their experts sharded over EP ranks, and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from accel_backends.expert_parallel.dispatch import DispatchedExperts, LocalExperts
from accel_backends.plans.plan import ParallelPlan
from accel_ops.named_tensors import NamedTensor, named_tensors
from accel_state.errors import ConfigError

DISPATCHED = "ep_dispatch_experts"
"""The style of a module with experts, whose forward takes tokens, the experts that they chose, and their weights."""


class ExpertParallel:
    """The modules of one model whose experts are spread over ranks.

    Args:
        model: A model that is not cut yet; it stays as it is until `cut`.
        plan: Its plan.
        mesh: The ranks over which experts are spread, along one axis.
        gradient_scale: Factor for the gradients of experts; these see the tokens of all ranks.
        layer_mesh: The ranks that share each layer, and so have the same tokens; None where none do.

    Raises:
        ConfigError: If the plan names no experts, or they cannot be spread over so many ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: ParallelPlan,
        mesh: DeviceMesh,
        *,
        gradient_scale: float,
        layer_mesh: DeviceMesh | None = None,
    ) -> None:
        self.modules = expert_modules(model, plan, num_ranks=mesh.size())
        self._mesh = mesh
        self._gradient_scale = gradient_scale
        self._layer_mesh = layer_mesh

    def cut(self, parameters: Sequence[NamedTensor]) -> None:
        """Cut those modules that hold ``parameters``, whose values are alike on all ranks. No communication."""
        places = {(module, key) for found in parameters for module, key in found.places}
        for experts in self.modules.values():
            owned = [
                (owner, key)
                for owner in experts.modules()
                for key in owner._parameters
                if (owner, key) in places
            ]
            if owned:
                self._spread(experts, owned)

    def _spread(self, experts: nn.Module, owned: Sequence[tuple[nn.Module, str]]) -> None:
        num_experts, group = _num_experts(experts), self._mesh.get_group()
        for owner, key in owned:
            whole = owner._parameters[key]
            assert whole is not None
            part = distribute_tensor(whole.detach(), self._mesh, [Shard(0)], src_data_rank=None)
            owner._parameters[key] = nn.Parameter(part, requires_grad=whole.requires_grad)
        if getattr(experts, "num_experts", None) == num_experts:
            experts.num_experts = num_experts // self._mesh.size()  # type: ignore[assignment]
        experts.forward = DispatchedExperts(
            experts.forward,
            compute=LocalExperts(experts, gradient_scale=self._gradient_scale),
            num_experts=num_experts,
            group=group,
            layer_mesh=self._layer_mesh,
        )


def expert_modules(model: nn.Module, plan: ParallelPlan, *, num_ranks: int) -> dict[str, nn.Module]:
    """Return the modules whose experts are spread over ranks, by name.

    Args:
        model: On any device; it stays as it is.
        plan: Its plan.
        num_ranks: Ranks over which experts are spread.

    Raises:
        ConfigError: If the plan names none, or they cannot be spread over so many ranks.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found = {}
    for name, style in plan.experts.items():
        if style == DISPATCHED:
            if name not in modules:
                raise ConfigError(
                    f"`{name}` is a parameter of the {type(model).__name__}, and its style `{style}` is for modules. "
                    "Name the module that holds it."
                )
            found[name] = modules[name]
    if not found:
        raise ConfigError(
            f"The {type(model).__name__} has no plan that names experts to spread over {num_ranks} ranks (`ep_size`). "
            f"Give its class a `parallel_plan`, such as {{'experts': {{'layers.*.experts': '{DISPATCHED}'}}}}, with "
            "the names of its own modules, or set `ep_size` to 1."
        )
    for name, experts in found.items():
        _check_experts(name, experts, num_ranks=num_ranks)
    _check_apart(model, found)
    return found


def without_experts(plan: ParallelPlan, experts: Collection[str]) -> ParallelPlan:
    """Return ``plan`` without the styles by which ranks would share the layers in ``experts``."""
    tensor = {
        name: style
        for name, style in (plan.tensor or {}).items()
        if not any(name == outer or name.startswith(f"{outer}.") for outer in experts)
    }
    return replace(plan, tensor=tensor)


def _check_experts(name: str, experts: nn.Module, *, num_ranks: int) -> None:
    """Refuse a module in which experts cannot be told apart, or which ranks cannot share alike."""
    shapes = {key: tuple(parameter.shape) for key, parameter in experts.named_parameters()}
    is_list = isinstance(experts, nn.ModuleList)
    if is_list or len({shape[:1] for shape in shapes.values()}) != 1 or () in shapes.values():
        raise ConfigError(
            f"`{name}` is a `{type(experts).__name__}` with the parameters "
            f"{', '.join(f'`{key}` {shape}' for key, shape in list(shapes.items())[:4])}. Each parameter must hold all "
            "experts along its first dimension, such as (experts, outputs, inputs), and the module's own forward take "
            "`(hidden_states, top_k_index, top_k_weights)`. Stack the experts of a list, or set `ep_size` to 1."
        )
    num_experts = _num_experts(experts)
    if num_experts % num_ranks:
        divisors = ", ".join(str(number) for number in range(1, num_experts + 1) if num_experts % number == 0)
        raise ConfigError(
            f"`{name}` has {num_experts} experts, which {num_ranks} ranks (`ep_size`) cannot share equally. Choose an "
            f"`ep_size` that divides {num_experts}: {divisors}."
        )


def _num_experts(experts: nn.Module) -> int:
    return len(next(experts.parameters()))


def _check_apart(model: nn.Module, experts: Mapping[str, nn.Module]) -> None:
    """Refuse experts that share a parameter with another module, which would use it whole."""
    inside = {id(module): name for name, one in experts.items() for module in one.modules()}
    for found in named_tensors(model, include_buffers=False):
        if len({inside.get(id(module)) for module, _ in found.places}) > 1:
            raise ConfigError(
                f"{' and '.join(f'`{name}`' for name in found.names)} are one tensor, of which one place is in experts "
                "that are spread over ranks. Untie them, or set `ep_size` to 1."
            )
