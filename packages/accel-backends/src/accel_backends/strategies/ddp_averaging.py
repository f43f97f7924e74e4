"""Notices gradients that DDP leaves unaveraged, and warns when an optimizer steps them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch._C._distributed_c10d import _register_comm_hook
from torch.nn.modules import module as registrations
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from accel_backends.handlers.ddp import restart
from accel_backends.unwrap import innermost
from accel_state.lost_rank import note_lost_rank
from accel_state.user_warnings import warn_user

_NOBODY: frozenset[int] = frozenset()
_UNUSED = (
    "With accel: `Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])`. It costs "
    "a walk through the graph in each step; better leave out parameters that no loss depends on, or freeze them."
)


class UnaveragedGradientsWarning(UserWarning):
    """An optimizer steps gradients that DDP did not average over the ranks, so each rank trains its own weights."""


class Registered:
    """How many parameters and modules were registered in any module since a model was first wrapped."""

    num = -1

    @classmethod
    def count(cls, *_: object) -> None:
        cls.num += 1

    @classmethod
    def start(cls) -> None:
        if cls.num < 0:
            cls.num = 0
            registrations.register_module_parameter_registration_hook(cls.count)
            registrations.register_module_module_registration_hook(cls.count)


class BackwardTrack:
    """Whether the gradients of a model are averaged, as far as a few of its parameters can tell.

    DDP averages in the first backward that follows a forward of its own, and in no other.

    Attributes:
        watched: The parameter whose gradient tells of each backward; None: no parameter can.
        has_thawed: Whether a parameter that was frozen has got a gradient.
        is_filled: Whether gradients that a backward did not reach were averaged nevertheless.
    """

    def __init__(self) -> None:
        self.watched: nn.Parameter | None = None
        self.is_due = False
        self.is_missed = False
        self.is_filled = False
        self.has_thawed = False
        self.stepped_since_forward = _NOBODY
        self._handles: list[RemovableHandle] = []

    def watch(self, watched: nn.Parameter | None, *, frozen: Iterable[nn.Parameter]) -> None:
        """Look at these parameters from now on, and at no others."""
        for handle in self._handles:
            handle.remove()
        self.watched, self.has_thawed = watched, False
        self._handles = [_on_gradient(parameter, self._thawed) for parameter in frozen]
        if watched is not None:
            self._handles.append(_on_gradient(watched, self._accumulated))

    def begin(self) -> None:
        """Note that DDP prepared for a backward, whether it averages or `no_sync` asked it not to."""
        # Written, never read: compiled code that has a DDP inside guards none of it.
        self.is_due = True
        self.is_filled = False
        self.stepped_since_forward = _NOBODY

    def _accumulated(self, parameter: torch.Tensor) -> None:
        self.is_missed = not self.is_due
        self.is_due = False

    def _thawed(self, parameter: torch.Tensor) -> None:
        self.has_thawed = True


class TrackedDDP(DistributedDataParallel):
    """`DistributedDataParallel` with a `BackwardTrack`, whose reducer can be built anew.

    Attributes:
        number: The same on all ranks.
        reduced: The parameters that the reducer knows, with their names.
        num_changes: How often the ranks have agreed on other parameters.
        num_registered: `Registered.num` when the reducer knew all of them.
    """

    _numbers: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.number, self.num_changes = next(self._numbers), 0
        self.track = BackwardTrack()
        self._follow()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the model, and prepare for the backward. Communicates as `DistributedDataParallel` does."""
        if torch.is_grad_enabled():
            self.track.begin()
        if torch.compiler.is_compiling():  # a graph that breaks within `try` cannot be resumed
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        try:
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "find_unused_parameters=True" in str(error):  # torch names its own class only
                error.add_note(_UNUSED)
            note_lost_rank(error, "forward")
            raise

    def __getattr__(self, name: str) -> Any:
        """Return what torch keeps apart; for anything of the model's own, the error names `unwrap_model`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = self.__dict__.get("_modules", {}).get("module")
            if model is None or not hasattr(model, name):
                raise
        raise AttributeError(
            f"`{name}` belongs to the model, a `{type(innermost(model)).__name__}`, which `prepare` has wrapped for "
            f"training with several processes. Use `accelerator.unwrap_model(model).{name}`.",
            name=name,
            obj=self,
        )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally in the block."""
        # With a static graph torch averages in its first backward, also here, and fails since nothing is prepared
        # (`_DDPSink` in torch 2.13); and its reducer counts this backward. So the first is one without a block.
        is_first = self.static_graph and not self._static_graph_delay_allreduce_enqueued
        if is_first:
            self._static_graph_delay_allreduce_enqueued = True
        try:
            with super().no_sync():
                yield
        finally:
            if is_first:
                self.rebuild()

    def parameters_by_name(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that are not ignored."""
        named = self.module.named_parameters()
        return ((name, one) for name, one in named if name not in self.parameters_to_ignore)

    def may_have_changed(self) -> bool:
        """Whether a backward showed that other parameters may be trained than the reducer knows."""
        return self.track.has_thawed or self.num_registered != Registered.num or not self.is_averaged()

    def is_averaged(self) -> bool:
        """Whether no parameter is missing in a backward that has begun."""
        try:
            self._check_reducer_finalized()  # type: ignore[no-untyped-call]
        except RuntimeError:
            return False
        return True

    def rebuild(self) -> None:
        """Make the reducer know the parameters that are trained now. All ranks together."""
        # What the constructor of torch 2.9 to 2.15 does; there is no public way to other parameters.
        ddp: Any = self
        ddp.reducer._remove_autograd_hooks()
        parameters, expect_sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        ddp._ddp_init_helper(parameters, expect_sparse, names, ddp.static_graph)
        ddp._has_rebuilt_buckets = False
        if ddp.static_graph:
            ddp.static_graph = False
            ddp._set_static_graph()
        for hook, state in ddp._comm_hooks:
            restart(state)
            _register_comm_hook(ddp.reducer, state, hook)
        self._follow()
        if self.track.is_due and not self.static_graph:
            ddp.reducer.prepare_for_backward([])  # the change was noticed in the backward of another model

    def _follow(self) -> None:
        Registered.start()
        self.num_registered = Registered.num
        self.reduced = {one: name for name, one in self.parameters_by_name() if one.requires_grad}
        frozen = (
            one for one in self.module.parameters() if not one.requires_grad and one.is_floating_point()
        )
        # The first, which is the nearest to the input: most losses reach it. With a static graph one backward may
        # add to a gradient several times.
        watched = None if self.static_graph else next(iter(self.reduced))
        self.track.watch(watched, frozen=frozen)


def _on_gradient(parameter: nn.Parameter, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
    """Call ``hook`` whenever ``parameter`` has got a gradient, also if it is frozen now."""
    is_trained = parameter.requires_grad
    handle = parameter.requires_grad_(True).register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(is_trained)
    return handle  # type: ignore[no-any-return]


class _Stepped(NamedTuple):
    """What an optimizer steps of a model."""

    model: weakref.ref[TrackedDDP]
    track: BackwardTrack
    parameters: Sequence[torch.Tensor]

    def is_unaveraged(self, is_forward_missing: bool) -> bool:
        """Whether there are gradients that a backward without DDP left here: no zeros, no leftovers of other steps."""
        model, track = self.model(), self.track
        if model is None or not model.require_backward_grad_sync:
            return False  # within `no_sync` ranks step for themselves on purpose, as LocalSGD does
        watched = track.watched
        if watched is not None and any(one is watched for one in self.parameters) and _has_gradient(watched):
            return track.is_missed
        return is_forward_missing and any(_has_gradient(parameter) for parameter in self.parameters)


class AveragingCheck:
    """Warns, once, if an optimizer is about to step gradients of a `TrackedDDP` that nobody averaged.

    Local: it asks no other rank, and looks at gradients only where something seems wrong.

    Args:
        models: The models that are prepared; there may be more later.
        update: Called before each step.
    """

    def __init__(self, models: Iterable[TrackedDDP], *, update: Callable[[], None]) -> None:
        self._models = models
        self._update = update
        self._stepped: list[_Stepped] = []
        self._num_groups = 0
        self._has_warned = False

    def __call__(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at what ``optimizer`` will step."""
        self._update()
        if self._has_warned:
            return
        if len(optimizer.param_groups) != self._num_groups:
            self._find(optimizer)
        for stepped in self._stepped:
            track = stepped.track
            is_forward_missing = id(self) in track.stepped_since_forward
            track.stepped_since_forward |= {id(self)}
            if (track.is_missed or is_forward_missing) and stepped.is_unaveraged(is_forward_missing):
                self._has_warned = True
                _warn(stepped, optimizer)

    def _find(self, optimizer: torch.optim.Optimizer) -> None:
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._num_groups = len(optimizer.param_groups)
        found = (
            (model, [parameter for parameter in model.parameters() if id(parameter) in own])
            for model in self._models
        )
        self._stepped = [
            _Stepped(weakref.ref(model), model.track, parameters) for model, parameters in found if parameters
        ]


def _has_gradient(parameter: torch.Tensor) -> bool:
    # The host waits for the device, only if gradients may not have been averaged.
    return parameter.grad is not None and bool(parameter.grad.norm() != 0)


def _warn(stepped: _Stepped, optimizer: torch.optim.Optimizer) -> None:
    model = stepped.model()
    assert model is not None
    name = type(innermost(model)).__name__
    warn_user(
        f"This {type(optimizer).__name__} steps gradients of `{name}` that were not averaged over the ranks, so the "
        "ranks train different weights. Gradients are averaged in the first backward after a call of the prepared "
        "model, and in no other. Compute the loss by calling the prepared model, not `unwrap_model(model)`, "
        "`model.module` or another method than `forward`; call `backward` once for all losses of a call.",
        UnaveragedGradientsWarning,
        main_process_only=False,
    )
