"""What one forward pass of a rank keeps for the backward pass, and what it sends: found without values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
from torch.overrides import TorchFunctionMode

from accel_backends.estimates.placeholders import placeholder_of, swapped_tensors
from accel_backends.estimates.watched_attention import WatchedAttention
from accel_backends.estimates.watched_experts import watched_experts
from accel_backends.plans.plan import ParallelPlan
from accel_backends.tensor_parallel.experts import ExpertsParallel
from accel_backends.tensor_parallel.key_value_heads import CopiedHeads
from accel_backends.tensor_parallel.parallel import cut_dims, cut_styles
from accel_backends.tensor_parallel.styles import CutStyle
from accel_backends.transforms.expert_parallel import expert_modules, without_experts
from accel_ops.named_tensors import NamedTensor, named_tensors
from accel_ops.nested.describe import iterate_tensors
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Message:
    """One collective among the ranks that share a layer, a sequence or its experts.

    Attributes:
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``send``.
        num_bytes: Of the whole tensor; of what one rank has to send, in the last two.
        is_repeated: Whether it is sent again where activations are computed again in the backward pass.
        axes: The axes of the layout along which the ranks differ.
    """

    kind: str
    num_bytes: int
    is_repeated: bool = False
    axes: tuple[str, ...] = ("tp",)


@dataclass(slots=True)
class StageSizes:
    """One pipeline stage; without a pipeline the whole model.

    Attributes:
        saved: Bytes of what autograd keeps between forward and backward pass, parameters and buffers excepted.
        checkpointed: The most bytes of it at a time where each unit keeps its inputs alone and is computed again.
        received: Bytes of what the stage gets from the one before.
        messages: What the ranks that share its layers, sequences or experts send, in both passes.
    """

    saved: int = 0
    checkpointed: int = 0
    received: int = 0
    messages: list[Message] = field(default_factory=list)


def forward_sizes(
    model: nn.Module,
    plan: ParallelPlan,
    *,
    batch_size: int,
    sequence_length: int,
    layout: MeshLayout | None = None,
    dtype: torch.dtype | None = None,
    starts: Sequence[str] = (),
    has_ring: bool = False,
) -> list[StageSizes]:
    """Run ``model`` once on tokens without values, as one rank would, and return the sizes of each stage.

    The loss is that of the model where it takes ``labels``, otherwise the cross entropy over the last dimension of
    what it returns. What experts that ranks share keep depends on which tokens choose them, and is left out.

    Args:
        model: On any device, meta included; it stays as it is.
        plan: From `resolve_plan`.
        batch_size: Sequences of one rank and one micro-batch.
        sequence_length: Tokens of each on one rank.
        layout: Who shares layers, sequences and experts; None: nobody. Other axes do not matter.
        dtype: What the rank computes in; None: as parameters are.
        starts: The modules with which stages begin, from the second on.
        has_ring: With `cp`, keys and values go around in a ring; otherwise they are gathered.

    Raises:
        ConfigError: If layers cannot be shared as the plan says, or the model cannot run without values.
    """
    layout = MeshLayout() if layout is None else layout
    num_sharing = layout.tp
    experts = expert_modules(model, plan, num_ranks=layout.ep) if layout.ep > 1 else {}
    plan = without_experts(plan, experts) if experts else plan
    tensors = named_tensors(model)
    dims = cut_dims(model, plan, num_ranks=num_sharing) if num_sharing > 1 else {}
    styles = cut_styles(model, plan.tensor, num_ranks=num_sharing) if num_sharing > 1 else {}
    values = {
        number: _local(found, dims.get(id(found.tensor)), num_sharing, dtype)
        for number, found in enumerate(tensors)
    }
    tokens = placeholder_of(torch.empty(batch_size, sequence_length, dtype=torch.long, device="meta"), _CPU)
    recorder = _Recorder([StageSizes() for _ in range(len(starts) + 1)], values.values())
    sharded_experts = [module for module, style in styles.items() if style.dims is not None]
    was_training = model.training
    model.train()
    try:
        with (
            swapped_tensors(tensors, values),
            _watched(model, plan.units, styles, starts, num_sharing, recorder),
            watched_experts(experts.values(), sharded_experts, layout, send=recorder.send),
            WatchedAttention(layout, ring=has_ring, send=recorder.send)
            if layout.size("cp", "sp") > 1
            else nullcontext(),
            nullcontext() if dtype == torch.bfloat16 else _GroupedProducts(),
            saved_tensors_hooks(recorder.save, lambda packed: packed),
            torch.enable_grad(),
        ):
            run_on_tokens(model, tokens)
    finally:
        model.train(was_training)
    return recorder.finished()


def run_on_tokens(model: nn.Module, tokens: torch.Tensor) -> Any:
    """Return what ``model`` returns for tokens, which are its labels too, or else a loss of what it returns first.

    Raises:
        ConfigError: If the model cannot run on tokens alone, or without values.
    """
    parameters = inspect.signature(model.forward).parameters
    others = {name: tokens for name in ("labels", "decoder_input_ids") if name in parameters}
    try:
        outputs = model(tokens, **others)
        if "labels" in parameters:
            return outputs
        logits = next(iterate_tensors(outputs))
        return nn.functional.cross_entropy(logits.float().flatten(0, -2), tokens.flatten())
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ConfigError(
            f"The {type(model).__name__} decides by values what it computes ({error.func}), so its activations cannot "
            "be computed without them. Leave out `--sequence_length`."
        ) from error
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"The {type(model).__name__} cannot run on tokens alone, so its activations cannot be estimated "
            f"({type(error).__name__}: {str(error).strip()}). Leave out `--sequence_length`."
        ) from error


class _GroupedProducts(TorchFunctionMode):
    """Within it, products of experts have the sizes of any dtype; without values torch has them in bf16 alone."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch._grouped_mm, getattr(nn.functional, "grouped_mm", None)) and args[1].ndim == 3:
            return args[0] @ args[1][0]
        return func(*args, **(kwargs or {}))


class _Recorder:
    """Takes down what a forward pass saves and sends, by stage and by unit."""

    def __init__(self, stages: list[StageSizes], held: Collection[torch.Tensor]) -> None:
        self._stages = stages
        self._known = {one.untyped_storage()._cdata for one in held}
        self._kept = list(held)  # so that no storage is mistaken for one that is gone
        self._stage = 0
        self._unit: list[_Unit] = []
        self._units: list[_Unit] = []

    @property
    def stage(self) -> StageSizes:
        return self._stages[self._stage]

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if self._unit:
            self._unit[-1].num_needed = len(self._unit[-1].messages)
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self._kept.append(tensor)
            self.stage.saved += storage.nbytes()
            if self._unit:
                self._unit[-1].saved += storage.nbytes()
        return tensor

    def send(self, kind: str, num_bytes: int, *, in_forward: bool, axes: tuple[str, ...] = ("tp",)) -> None:
        place = len(self.stage.messages)
        self.stage.messages.append(Message(kind, num_bytes, axes=axes))
        if self._unit and in_forward:
            self._unit[-1].messages.append(place)

    def enter_stage(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._stage += 1
        self.stage.received = _bytes_of(inputs)

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._unit.append(_Unit(self._stage, inputs=_bytes_of(inputs)))

    def leave(self, module: nn.Module, inputs: object, outputs: object) -> None:
        self._units.append(self._unit.pop())

    def finished(self) -> list[StageSizes]:
        for number, stage in enumerate(self._stages):
            units = [unit for unit in self._units if unit.stage == number]
            in_units = sum(unit.saved for unit in units)
            inputs = sum(unit.inputs for unit in units)
            stage.checkpointed = (
                stage.saved - in_units + inputs + max((unit.saved for unit in units), default=0)
            )
            for unit in units:
                for place in unit.messages[: unit.num_needed]:
                    stage.messages[place] = replace(stage.messages[place], is_repeated=True)
        return self._stages


@dataclass(slots=True)
class _Unit:
    """A unit that runs: what it saves, and the places of what it sends.

    Computing it again ends with the last tensor that autograd needs, so what is sent after that is not repeated.
    """

    stage: int
    inputs: int
    saved: int = 0
    messages: list[int] = field(default_factory=list)
    num_needed: int = 0


@contextmanager
def _watched(
    model: nn.Module,
    units: Sequence[str],
    styles: Mapping[nn.Module, CutStyle],
    starts: Sequence[str],
    num_sharing: int,
    recorder: _Recorder,
) -> Iterator[None]:
    handles = [model.get_submodule(name).register_forward_pre_hook(recorder.enter_stage) for name in starts]
    for name in units:
        module = model.get_submodule(name)
        handles.append(module.register_forward_pre_hook(recorder.enter))
        handles.append(module.register_forward_hook(recorder.leave))
    stack = ExitStack()
    for module, style in styles.items():
        if isinstance(made := style.make(), CopiedHeads):
            stack.callback(made.reduce_heads())
        watched = _SharedLayer(style, num_sharing, recorder.send)
        handles.append(module.register_forward_pre_hook(watched.before))
        handles.append(module.register_forward_hook(watched.after))
    try:
        with stack:
            yield
    finally:
        for handle in handles:
            handle.remove()


class _SharedLayer:
    """Gives a layer that holds one rank's part the inputs and outputs that it has on this rank."""

    def __init__(self, style: CutStyle, num_ranks: int, send: Callable[..., None]) -> None:
        self._takes, self._returns = _passing(style)
        self._style = style.make()
        self._sums_gradients = isinstance(self._style, (SequenceParallel, CopiedHeads))
        self._num_ranks = num_ranks
        self._send = send

    def before(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (given, *others) = inputs
        needs_gradient = given.requires_grad
        if self._sums_gradients:
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad:
                    self._send("all_reduce", parameter.nbytes, in_forward=False)
        match self._takes:
            case "whole":
                for one in inputs:
                    if one.requires_grad:
                        self._send("all_reduce", one.nbytes, in_forward=False)
            case "split":
                if needs_gradient:
                    self._send("all_gather", self._padded(given, -1), in_forward=False)
                given = given.narrow(-1, 0, -(-given.shape[-1] // self._num_ranks))
            case "sequence":
                given = torch.cat([given] * self._num_ranks, 1)
                self._send("all_gather", given.nbytes, in_forward=True)
                if needs_gradient:
                    self._send("reduce_scatter", given.nbytes, in_forward=False)
        return (given, *others)

    def after(self, module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        if isinstance(self._style, CopiedHeads):
            output = self._style.own_head(output)
        match self._returns:
            case "gathered":
                output = torch.cat([output] * self._num_ranks, -1)
                self._send("all_gather", output.nbytes, in_forward=True)
                whole = module.out_features if isinstance(module, nn.Linear) else module.embedding_dim
                output = output.narrow(
                    -1, 0, cast(int, whole)
                )  # parts are alike, so the last may be too long
            case "summed":
                self._send("all_reduce", output.nbytes, in_forward=True)
            case "sequence":
                self._send("reduce_scatter", output.nbytes, in_forward=True)
                self._send("all_gather", output.nbytes, in_forward=False)
                output = output.narrow(1, 0, output.shape[1] // self._num_ranks)
        return output

    def _padded(self, tensor: torch.Tensor, dim: int) -> int:
        size = tensor.shape[dim]
        return tensor.nbytes // size * -(-size // self._num_ranks) * self._num_ranks


def _passing(style: CutStyle) -> tuple[str, str]:
    """Return what a layer takes and what becomes of its outputs, as torch's style for it says."""
    torch_style = style.make()
    if isinstance(torch_style, ExpertsParallel):
        return "whole", "summed"
    if isinstance(torch_style, CopiedHeads):
        return "whole", "own"
    if not isinstance(torch_style, (ColwiseParallel, RowwiseParallel)):
        return ("whole" if style.dim == 0 else "own"), "own"
    (takes,), (returns,) = torch_style.input_layouts, torch_style.output_layouts
    if isinstance(torch_style, ColwiseParallel):
        return ("sequence" if takes == Shard(1) else "whole"), (
            "gathered" if returns.is_replicate() else "own"
        )
    is_split = takes.is_replicate() and nn.Linear in style.kinds
    return ("split" if is_split else "own"), ("sequence" if returns == Shard(1) else "summed")


def _local(found: NamedTensor, dim: int | None, num_ranks: int, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a tensor without values, with the shape that this rank computes with."""
    shape = list(found.tensor.shape)
    if dim is not None:
        shape[dim] = -(-shape[dim] // num_ranks)
    computed = dtype if dtype is not None and found.tensor.is_floating_point() else found.tensor.dtype
    made = placeholder_of(torch.empty(shape, dtype=computed, device="meta"), _CPU)
    if not found.is_parameter:
        return made
    return nn.Parameter(made, requires_grad=found.tensor.requires_grad)


def _bytes_of(inputs: tuple[Any, ...]) -> int:
    return sum(one.nbytes for one in inputs if isinstance(one, torch.Tensor))
