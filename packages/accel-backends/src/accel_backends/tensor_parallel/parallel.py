"""Shard the layers that a plan names over the TP ranks by torch's styles; detect layers that a library has sharded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from accel_backends.plans.plan import ParallelPlan
from accel_backends.tensor_parallel.experts import CUT_EXPERTS, styles_of_experts
from accel_backends.tensor_parallel.key_value_heads import with_copied_heads
from accel_backends.tensor_parallel.styles import STYLES, CutStyle, check_heads
from accel_ops.named_tensors import NamedTensor, named_tensors
from accel_ops.random import capture_rng_states, restore_rng_states
from accel_state.errors import ConfigError

_STYLE_OF_TIED: Mapping[tuple[type[nn.Module], int], str] = {
    (nn.Embedding, 0): "embedding_rowwise",
    (nn.Embedding, 1): "embedding_colwise",
    (nn.Linear, 0): "colwise_gather_output",
    (nn.Linear, 1): "rowwise_split_input",
}
"""The style of a layer that has none, but is tied to a layer whose weight is sharded along this dimension."""


class TensorParallel:
    """The layers of one model to shard, and how.

    Args:
        model: An unsharded model; it stays as it is until `cut`.
        plan: Its plan.
        mesh: The TP ranks, along one axis.

    Raises:
        ConfigError: If the plan shards nothing, or a layer cannot be sharded as the plan says.
    """

    def __init__(self, model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._styles = cut_styles(model, plan.tensor, num_ranks=mesh.size())

    @property
    def is_in_sequence(self) -> bool:
        """Whether activations between layers are sharded by tokens."""
        return any(style.in_sequence for style in self._styles.values())

    def cut(self, parameters: Sequence[NamedTensor]) -> None:
        """Shard the layers of ``parameters``, which have the same values on all ranks. No communication.

        Tied parameters stay tied.
        """
        for module in dict.fromkeys(module for found in parameters for module, _ in found.places):
            if module in self._styles:
                style = self._styles[module]
                if style.in_sequence:
                    module.register_forward_hook(partial(_check_sequence, num_ranks=self._mesh.size()))
                is_trained = {key: one.requires_grad for key, one in module.named_parameters(recurse=False)}
                parallelize_module(module, self._mesh, style.make(), src_data_rank=None)
                for key, one in module.named_parameters(recurse=False):
                    one.requires_grad_(is_trained[key])  # which torch's style for norms forgets
                if style.gathers:
                    module.register_forward_hook(_own_memory)
        for found in parameters:
            (first, first_key), *others = found.places
            for module, key in others:
                module._parameters[key] = first._parameters[first_key]


def are_layers_sharded(model: nn.Module, mesh: DeviceMesh) -> bool:
    """Whether a library has sharded layers of ``model`` over the ranks of ``mesh``, its parameters being `DTensor`s.

    Raises:
        ConfigError: If it has sharded them over other ranks.
    """
    meshes = {one.device_mesh: None for one in model.parameters() if isinstance(one, DTensor)}
    for found in meshes:
        if found != mesh:
            raise ConfigError(
                f"The {type(model).__name__} to prepare was sharded over {found} before, and the `tp` ranks of this "
                f"run are {mesh}. Shard it over `accelerator.torch_device_mesh['tp']`, or load it unsharded and let "
                "`prepare` shard it."
            )
    return bool(meshes)


def own_outputs(modules: Iterable[nn.Module]) -> None:
    """Have layers that a library has sharded, and that FSDP hooks, return tensors that are no views."""
    for module in modules:
        if any(isinstance(one, DTensor) for one in module.parameters(recurse=False)):
            module.register_forward_hook(_own_memory)


def cut_styles(
    model: nn.Module, styled: Mapping[str, str] | None, *, num_ranks: int
) -> dict[nn.Module, CutStyle]:
    """Return how each layer is sharded that is.

    Args:
        model: On any device; it stays as it is.
        styled: The styles of its plan.
        num_ranks: Ranks that share each layer.

    Raises:
        ConfigError: If the plan shards nothing, or a layer cannot be sharded as the plan says.
    """
    if not styled:
        raise ConfigError(
            f"The {type(model).__name__} has no plan by which {num_ranks} ranks (`tp_size`) could share its layers. "
            "Give its class a `parallel_plan`, such as {'tensor': {'layers.*.up': 'colwise', 'layers.*.down': "
            "'rowwise'}}, with the names of its own layers, or set `tp_size` to 1."
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    experts = styles_of_experts(modules, styled, num_ranks=num_ranks)
    styles = {modules[name]: style for name, style in experts.items()}
    for name, style in styled.items():
        if any(name == outer or name.startswith(f"{outer}.") for outer in experts):
            continue
        if style not in STYLES:
            raise ConfigError(
                f"`{name}` has the style `{style}`, by which `prepare` cannot shard it. It knows: {', '.join(STYLES)}. "
                "A model of transformers with other styles is sharded by transformers: load it with "
                "`distributed_config=DistributedConfig(tp_size=…)`; or set `tp_size` to 1."
            )
        module = modules.get(name)
        if module is None:
            raise ConfigError(
                f"`{name}` is a parameter of the {type(model).__name__}, and its style `{style}` in the plan of the "
                "model is for modules: of parameters by themselves, ranks (`tp_size`) can share those of experts, in a "
                f"module with the style `{CUT_EXPERTS}`. Name the module that holds it in `tensor` of a "
                "`parallel_plan` of your own, or set `tp_size` to 1."
            )
        parent = modules[name.rpartition(".")[0]]
        chosen = with_copied_heads(STYLES[style], module, parent, num_ranks=num_ranks)
        chosen.check(style, name, module, num_ranks=num_ranks)
        if chosen.dim == 0 and chosen.uneven:
            check_heads(name, module, parent, num_ranks=num_ranks, num_blocks=chosen.num_blocks)
        styles[module] = chosen
    for found in named_tensors(model, include_buffers=False):
        if len(found.places) > 1:
            _add_tied(styles, found)
    if any(style.in_sequence for style in styles.values()):
        _check_all_styled(model, styles)
    return styles


def _check_all_styled(model: nn.Module, styles: Mapping[nn.Module, CutStyle]) -> None:
    """Check that each layer has a style; without one, its gradients could be partial.

    Raises:
        ConfigError: If one has none; names them.
    """
    found = named_tensors(model, include_buffers=False)
    idle = [one.names[0] for one in found if not all(module in styles for module, _ in one.places)]
    if idle:
        raise ConfigError(
            "Where the plan cuts sequences, every layer needs a style in `tensor`. Without one are: "
            f"{', '.join(f'`{name}`' for name in idle)}. Norms have `sequence_parallel`."
        )


def _add_tied(styles: dict[nn.Module, CutStyle], found: NamedTensor) -> None:
    """Add a style for each layer that is tied to a sharded layer.

    Raises:
        ConfigError: If styles contradict each other, or there is none for the class of a layer.
    """
    modules = [module for module, _ in found.places]
    dims = {styles[module].dim for module in modules if module in styles}
    tied = " and ".join(f"`{name}`" for name in found.names)
    if len(dims) > 1:
        raise ConfigError(
            f"{tied} are one tensor, but the plan cuts it along two dimensions. Give both layers a style for the same "
            "one: `embedding_rowwise` goes with `colwise_gather_output`, `embedding_colwise` with "
            "`rowwise_split_input`."
        )
    for module in modules:
        if dims and module not in styles:
            (dim,) = dims
            kind = next((kind for kind in (nn.Embedding, nn.Linear) if isinstance(module, kind)), None)
            if kind is None or dim is None:
                raise ConfigError(
                    f"{tied} are one tensor, which the plan cuts in one layer, and a `{type(module).__name__}` uses it "
                    "whole. Untie them, or take the other layer out of `tensor` of the plan."
                )
            styles[module] = STYLES[_STYLE_OF_TIED[kind, dim]]


def _check_sequence(module: nn.Module, inputs: object, output: torch.Tensor, *, num_ranks: int) -> None:
    if output.dim() > 1 and output.shape[1] % num_ranks:
        raise ConfigError(
            f"A sequence of {output.shape[1]} tokens cannot be cut over {num_ranks} ranks (`tp_size`), as the plan's "
            f"styles for sequences do. Pad sequences to a multiple of {num_ranks}."
        )


def _own_memory(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
    """Return a copy of a view: an in-place change of a view would lose the hooks of FSDP."""
    return output.clone() if output._is_view() else output


def share_random_state(mesh: DeviceMesh, device: torch.device) -> None:
    """Broadcast the random state of the first TP rank to the others. Every rank must call it.

    Replicated activations need the same dropout.
    """
    states = [capture_rng_states()]
    dist.broadcast_object_list(states, group_src=0, group=mesh.get_group(), device=device)
    restore_rng_states(states[0])
