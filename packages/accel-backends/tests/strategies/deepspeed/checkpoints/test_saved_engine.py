"""Files as DeepSpeed 0.19.8 writes them, made by hand: of two ranks under stage 3."""

import os
import sys
from types import ModuleType

import pytest
import torch

from accel_backends.strategies.deepspeed.checkpoints.saved_engine import SavedEngine
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.tensors import fetched
from accel_state.errors import CheckpointError

ODD = torch.arange(15.0).reshape(
    3, 5
)  # of which rank 0 has eight values, and rank 1 seven and one to fill up
SMALL = torch.tensor([7.0])  # of which rank 1 has nothing


def halves(tensor):
    flat = tensor.flatten()
    size = -(-flat.numel() // 2)
    return torch.nn.functional.pad(flat, (0, 2 * size - flat.numel())).split(size)


def write(folder):
    """Write the files, and return the folder."""
    (folder / "pytorch_model").mkdir()
    for rank in range(2):
        flat = torch.cat([halves(ODD)[rank], halves(SMALL)[rank]])
        model = {
            "module": {
                "odd": torch.empty(0),
                "small": torch.empty(0),
                "tied": torch.empty(0),
                "mean": torch.tensor(3.0),
            },
            "param_shapes": [{"odd": ODD.shape, "small": SMALL.shape}],
            "shared_params": {"tied": "odd"},
            "global_steps": 4,
        }
        state = {0: {"exp_avg": flat + 100, "step": torch.tensor(4.0)}}
        groups = [{"lr": 0.5, "params": [0]}]
        partition = {
            "zero_stage": 3,
            "partition_count": 2,
            "fp32_flat_groups": [flat],
            "optimizer_state_dict": {"state": state, "param_groups": groups},
            "overflow": False,
        }
        name = f"{folder}/pytorch_model/zero_pp_rank_{rank}_mp_rank_00"
        torch.save(model, f"{name}_model_states.pt")
        torch.save({"optimizer_state_dict": partition}, f"{name}_optim_states.pt")
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path)


def test_parameters_and_their_states_are_joined_from_the_parts_of_all_ranks(folder):
    saved = SavedEngine(saved_files(folder), "pytorch_model")
    weights = saved.weights()
    assert weights["tied"] is weights["odd"]
    assert {name: fetched(value).tolist() for name, value in weights.items()} == {
        "odd": ODD.tolist(),
        "small": [7.0],
        "tied": ODD.tolist(),
        "mean": 3.0,
    }
    states = saved.optimizer_states()
    assert states["odd"]["exp_avg"].fetch().tolist() == (ODD + 100).tolist()
    assert states["small"]["step"] == 4
    assert saved.optimizer_groups() == [{"lr": 0.5, "params": ["odd", "small"]}]
    assert saved.counters() == {"global_steps": 4, "overflow": False}


def test_a_part_of_a_tensor_may_lie_in_two_files(folder):
    odd = SavedEngine(saved_files(folder), "pytorch_model").weights()["odd"]
    assert odd.part(6, 4).tolist() == [6, 7, 8, 9]
    assert odd.part(9, 6).tolist() == [9, 10, 11, 12, 13, 14]


class ZeroStageEnum:
    def __reduce__(self):
        return getattr, (ZeroStageEnum, "weights")


def test_a_stage_that_an_early_python_3_11_saved_is_known(folder, monkeypatch):
    for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero", "deepspeed.runtime.zero.config"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[name], "ZeroStageEnum", ZeroStageEnum, raising=False)
    monkeypatch.setattr(ZeroStageEnum, "__module__", name)
    for path in (folder / "pytorch_model").glob("*optim_states.pt"):
        content = torch.load(path)
        content["optimizer_state_dict"]["zero_stage"] = ZeroStageEnum()
        torch.save(content, path)
    assert SavedEngine(saved_files(folder), "pytorch_model").stage == 3


class Harmful:
    def __reduce__(self):
        return os.getenv, ("HOME",)


def harm(folder):
    torch.save({"module": Harmful()}, folder / "pytorch_model" / "zero_pp_rank_0_mp_rank_00_model_states.pt")


def cut(folder):
    path = folder / "pytorch_model" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    path.write_bytes(path.read_bytes()[:900])


def remove(name):
    return lambda folder: (folder / "pytorch_model" / name).unlink()


def cut_in_parallel(folder):
    path = folder / "pytorch_model" / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    path.rename(path.with_name("zero_pp_rank_0_mp_rank_01_model_states.pt"))


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (harm, "rank_0_mp_rank_00_model_states.pt` is not loaded: it is damaged or contains more"),
        (cut, "rank_1_mp_rank_00_optim_states.pt` is not a readable"),
        (
            remove("zero_pp_rank_0_mp_rank_00_optim_states.pt"),
            "no file of rank 0 like `zero_pp_rank_1_.*optim",
        ),
        (remove("zero_pp_rank_1_mp_rank_00_optim_states.pt"), "saved by 2 ranks, but has files .* of 1"),
        (
            remove("zero_pp_rank_1_mp_rank_00_model_states.pt"),
            "files of the model of 1 ranks, of the optimizer 2",
        ),
        (cut_in_parallel, "part of a tensor-parallel model"),
    ],
    ids=["code", "truncated", "first-rank", "last-rank", "model", "tensor-parallel"],
)
def test_what_is_damaged_or_foreign_is_named(folder, damage, match):
    damage(folder)
    with pytest.raises(CheckpointError, match=match):
        SavedEngine(saved_files(folder), "pytorch_model")


def test_values_that_are_missing_are_named(folder):
    name = folder / "pytorch_model" / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    model = torch.load(name)
    model["param_shapes"] = [{"odd": torch.Size([3, 5]), "small": torch.Size([1]), "new": torch.Size([2])}]
    torch.save(model, name)
    with pytest.raises((CheckpointError, RuntimeError), match="new|exceeds"):
        SavedEngine(saved_files(folder), "pytorch_model").weights()
