from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

from accel_bigmodel import (
    ModelHook,
    SequentialHook,
    add_hook_to_module,
    remove_hook_from_module,
    remove_hook_from_submodules,
)

pytestmark = pytest.mark.usefixtures("execution_memory")


class Add(ModelHook):
    def __init__(self, before: float = 0.0, after: float = 0.0) -> None:
        self.before, self.after = before, after
        self.log: list[str] = []

    def init_hook(self, module):
        self.log.append("init")
        return module

    def pre_forward(self, module, x):
        return (x + self.before,), {}

    def post_forward(self, module, output):
        return output + self.after

    def after_error(self, module):
        self.log.append("error")

    def detach_hook(self, module):
        self.log.append("detach")
        return module


class Double(nn.Module):
    def forward(self, x: torch.Tensor, *, times: int = 2) -> torch.Tensor:
        """Multiply."""
        return x * times


X = torch.ones(2)


def test_a_hook_runs_before_and_after():
    module = add_hook_to_module(Double(), Add(before=1, after=10))
    assert torch.equal(module(X), torch.full((2,), 14.0))
    assert list(inspect.signature(module.forward).parameters) == ["x", "times"]
    assert (module.forward.__name__, module.forward.__doc__) == ("forward", "Multiply.")


def test_a_second_hook_replaces_the_first_unless_appended():
    first, second = Add(before=1), Add(before=10)
    module = add_hook_to_module(Double(), first)
    add_hook_to_module(module, second)
    assert module(X)[0] == 22
    assert first.log == ["init", "detach"]
    add_hook_to_module(module, first, append=True)
    assert isinstance(module._hf_hook, SequentialHook)
    assert module(X)[0] == 24
    assert second.log == ["init"]  # it stayed at work, and was not prepared twice


def test_hooks_in_a_row_pass_things_on():
    hook = SequentialHook(Add(before=1, after=5), Add(before=2, after=7))
    module = add_hook_to_module(Double(), hook)
    assert module(X)[0] == 20
    remove_hook_from_module(module)
    assert [part.log for part in hook.hooks] == [["init", "detach"], ["init", "detach"]]


def test_removal_leaves_the_module_as_it_was():
    module = nn.Sequential(Double(), nn.Sequential(Double()))
    before = [dict(vars(part)) for part in module.modules()]
    for part in module.modules():
        add_hook_to_module(part, ModelHook())
    remove_hook_from_submodules(module)
    assert [dict(vars(part)) for part in module.modules()] == before
    assert module(X)[0] == 4


def test_a_forward_of_the_instance_comes_back():
    module = Double()
    module.forward = lambda x: x - 1
    add_hook_to_module(module, Add(after=5))
    assert module(X)[0] == 5
    remove_hook_from_module(module)
    assert module(X)[0] == 0


def test_a_copy_runs_its_own_forward_and_hook():
    module = add_hook_to_module(nn.Linear(2, 2), Add(before=1))
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied.weight.zero_()
        copied.bias.zero_()
    copied._hf_hook.after = 3
    assert torch.equal(copied(X), torch.full((2,), 3.0))
    assert not torch.equal(module(X), copied(X))


def test_hooks_see_errors():
    hook = Add()
    module = add_hook_to_module(Double(), SequentialHook(hook, Add()))
    with pytest.raises(TypeError):
        module("text")
    assert hook.log == ["init", "error"] or hook.log == ["init"]


def test_no_grad_hooks_run_without_gradients():
    class Quiet(ModelHook):
        no_grad = True

    module = add_hook_to_module(nn.Linear(2, 2), Quiet())
    assert not module(X).requires_grad
    remove_hook_from_module(module)
    assert module(X).requires_grad


def test_one_of_several_hooks_can_turn_gradients_off():
    class WithoutGradients(ModelHook):
        no_grad = True

    module = nn.Linear(2, 2)
    add_hook_to_module(module, ModelHook())
    add_hook_to_module(module, WithoutGradients(), append=True)
    assert not module(torch.zeros(1, 2)).requires_grad


class Duck:
    """A hook that derives from no class of ours."""

    no_grad = False

    def init_hook(self, module):
        return module

    def pre_forward(self, module, *args, **kwargs):
        return args, kwargs

    def post_forward(self, module, output):
        return output

    def detach_hook(self, module):
        return module


@pytest.mark.parametrize("hook", [Duck(), SequentialHook(Duck(), ModelHook())])
def test_the_error_of_a_forward_passes_any_hook(hook):
    module = add_hook_to_module(nn.Linear(2, 2), hook)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        module(torch.zeros(1, 3))
