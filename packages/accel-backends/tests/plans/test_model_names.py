from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from accel_backends.plans.model_names import ModelNames, outermost, without_wrappers


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)


def net() -> nn.Module:
    return nn.ModuleDict({"embed": nn.Embedding(5, 3), "layers": nn.ModuleList([Block(), Block()])})


def paths(model, pattern):
    return [named.path for named in ModelNames(model).matching(pattern)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("layers.*", ["layers.0", "layers.1"]),
        ("layers.*.inner", ["layers.0.inner", "layers.1.inner"]),
        ("layers.1", ["layers.1"]),
        ("*", ["embed", "layers"]),
        ("layers*", []),
        ("layer.", []),
    ],
)
def test_a_star_matches_one_part_of_a_name(pattern, found):
    assert paths(net(), pattern) == found


def test_a_dot_in_a_rule_is_a_dot():
    assert paths(nn.ModuleDict({"layersX0": Block()}), "layers.0") == []


def test_wrappers_add_nothing_to_the_name_and_the_path_is_that_of_the_outermost():
    model = net()
    model["layers"] = nn.ModuleList([checkpoint_wrapper(torch.compile(Block())), Block()])
    names = ModelNames(torch.compile(model))
    block, _ = names.matching("layers.*")
    assert (block.path, block.class_name) == ("_orig_mod.layers.0", "Block")
    inside = "_orig_mod.layers.0._checkpoint_wrapped_module._orig_mod"
    assert block.inner_path == inside
    assert [named.path for named in names.matching("layers.0.inner")] == [f"{inside}.inner"]
    assert names.paths_matching("layers.0.inner.weight") == [f"{inside}.inner.weight"]
    for named in names:
        names.model.get_submodule(named.path)
        assert names.model.get_submodule(named.inner_path) is named.module


def test_containers_of_parallel_training_are_wrappers():
    names = ModelNames(nn.DataParallel(net()))
    assert [named.path for named in names.matching("layers.*")] == ["module.layers.0", "module.layers.1"]
    assert names.root.path == ""


def test_parts_that_wrappers_add_are_taken_out_of_a_name():
    assert without_wrappers("_orig_mod.layers.0._checkpoint_wrapped_module.inner") == "layers.0.inner"


def test_a_module_at_two_places_is_found_by_both_names_and_listed_at_the_first():
    model = net()
    model["again"] = model["embed"]
    names = ModelNames(model)
    assert [named.path for named in names.matching("again")] == ["embed"]
    assert names.paths_matching("again.weight") == ["embed.weight"]
    assert [named.name for named in names] == [
        "",
        "embed",
        "layers",
        *(f"layers.{n}{i}" for n in "01" for i in ("", ".inner")),
    ]


def test_parameters_are_counted_once():
    model = net()
    model["layers"].append(model["layers"][0])
    assert ModelNames(model).root.num_parameters == 15 + 2 * 12


def test_outermost_leaves_out_what_is_inside_another():
    names = ModelNames(net())
    found = names.matching("layers.*") + names.matching("layers.*.inner")
    ordered = [named for named in names if named in found]
    assert [named.name for named in outermost(ordered)] == ["layers.0", "layers.1"]


def test_the_nearest_rules_are_suggested():
    assert ModelNames(net()).nearest("layer.*") == " Nearest: `layers.*`, `layers`, `layers.*.inner`."
    assert ModelNames(net()).nearest("zzz") == ""
