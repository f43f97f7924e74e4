from __future__ import annotations

import functools
from types import MethodType

import torch
from torch import nn

from accel_backends.module_tree import replace_submodules, shallow_copy
from accel_backends.precisions.forward import wrap_forward


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(2, 2)
        self.branch = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.shared = self.branch[0]
        self.nothing = None
        self.register_module("absent", None)

    def forward(self, rows):
        return self.shared(self.branch(self.stem(rows)))


def to_identity(module):
    return nn.Identity() if isinstance(module, nn.ReLU) else module


def test_nothing_to_replace_gives_back_the_same_object():
    tree = Tree()
    assert replace_submodules(tree, lambda module: module) is tree


def test_only_the_path_to_a_replaced_module_is_copied():
    tree = Tree()
    result = replace_submodules(tree, to_identity)
    assert type(result) is Tree
    assert result is not tree
    assert isinstance(result.branch[1], nn.Identity)
    assert isinstance(tree.branch[1], nn.ReLU)
    assert result.branch is not tree.branch
    assert result.stem is tree.stem
    assert result.absent is None
    assert [id(p) for p in result.parameters()] == [id(p) for p in tree.parameters()]


def test_a_module_at_two_places_stays_one():
    tree = Tree()
    replaced = nn.Linear(2, 2)
    result = replace_submodules(tree, lambda module: replaced if module is tree.shared else module)
    assert result.shared is replaced
    assert result.branch[0] is replaced
    assert tree.branch[0] is tree.shared


def test_the_root_itself_may_be_replaced():
    other = nn.Identity()
    assert replace_submodules(Tree(), lambda module: other) is other


def test_bound_methods_are_bound_to_the_copy():
    tree = Tree()

    def forward(self, rows):
        return self.branch[1](rows)

    tree.forward = MethodType(forward, tree)
    rows = torch.tensor([[-1.0, 1.0]])
    result = replace_submodules(tree, to_identity)
    assert result(rows).tolist() == [[-1.0, 1.0]]
    assert tree(rows).tolist() == [[0.0, 1.0]]


def test_partials_over_the_module_are_bound_to_the_copy():
    tree = Tree()
    tree.forward = functools.update_wrapper(
        functools.partial(lambda module, rows: module.branch[1](rows), tree), tree.forward
    )
    result = replace_submodules(tree, to_identity)
    assert result(torch.tensor([[-1.0]])).tolist() == [[-1.0]]
    assert result.forward.__wrapped__.__self__ is result


def test_an_autocast_forward_is_bound_to_the_copy():
    tree = Tree()
    wrap_forward(tree, device_type="cpu", dtype=torch.bfloat16)
    seen = []
    branch = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    branch.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    result = replace_submodules(tree, lambda module: branch if module is tree.branch else module)
    assert result(torch.ones(1, 2)).dtype is torch.float32
    assert seen == [torch.bfloat16]


def test_a_shallow_copy_shares_parameters_buffers_and_hooks():
    layer = nn.BatchNorm1d(2)
    copied = shallow_copy(layer)
    calls = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    copied(torch.randn(4, 2))
    assert calls == [1]
    assert copied.weight is layer.weight
    assert copied.num_batches_tracked is layer.num_batches_tracked
