from __future__ import annotations

import json
import pickle
import re
import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accel_bigmodel import init_empty_weights, load_checkpoint_in_model, load_state_dict, save_model
from accel_state.errors import CheckpointError, ConfigError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("lost", torch.ones(2), persistent=False)


@pytest.fixture
def saved():
    torch.manual_seed(0)
    model = Net()
    model.body[1].running_mean.uniform_()
    model.body[1].num_batches_tracked.fill_(5)
    return model


def assert_same(model: nn.Module, wanted: nn.Module) -> None:
    got, expected = model.state_dict(), wanted.state_dict()
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


LAYOUTS = [(safe, size) for safe in (True, False) for size in ("10GB", 100)]


@pytest.mark.parametrize(("safe", "size"), LAYOUTS)
@pytest.mark.parametrize("empty", [True, False])
def test_what_was_saved_comes_back_bit_for_bit(tmp_path, saved, safe, size, empty):
    written = save_model(saved, tmp_path, size, safe)
    torch.manual_seed(1)
    if empty:
        with init_empty_weights(include_buffers=False):
            model = Net()
    else:
        model = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_checkpoint_in_model(model, tmp_path, strict=True)
    assert_same(model, saved)
    assert model.head.weight is model.embed.weight
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    load_checkpoint_in_model(model, written[-1], strict=True)  # the file or the index itself


def test_a_loaded_model_trains_and_does_not_write_into_its_file(tmp_path, saved):
    (path,) = save_model(saved, tmp_path)
    before = path.read_bytes()
    with init_empty_weights():
        model = Net()
    load_checkpoint_in_model(model, path)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.head(model.body(model.embed(torch.arange(8)))).sum().backward()
    optimizer.step()
    assert not torch.equal(model.embed.weight, saved.embed.weight)
    assert path.read_bytes() == before
    path.unlink()
    assert torch.isfinite(model.embed.weight).all()


def test_parameters_that_are_in_place_stay_the_same_objects(tmp_path, saved):
    save_model(saved, tmp_path)
    model = Net()
    before = dict(model.named_parameters())
    load_checkpoint_in_model(model, tmp_path)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())


def test_dtype_concerns_floats_outside_the_modules_that_keep_theirs(tmp_path, saved):
    save_model(saved, tmp_path)
    with init_empty_weights():
        model = Net()
    load_checkpoint_in_model(model, tmp_path, dtype="float16", keep_in_fp32_modules=["body.1", "embed"])
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    assert dtypes["body.0.weight"] == dtypes["body.2.bias"] == torch.float16
    assert dtypes["body.1.weight"] == dtypes["body.1.running_mean"] == dtypes["embed.weight"] == torch.float32
    assert dtypes["body.1.num_batches_tracked"] == torch.int64
    assert torch.equal(model.body[0].weight, saved.body[0].weight.half())


def test_without_dtype_the_model_keeps_its_own(tmp_path, saved):
    save_model(saved, tmp_path)
    model = Net().bfloat16()
    load_checkpoint_in_model(model, tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.embed.weight, saved.embed.weight.bfloat16())


def test_a_device_map_places_what_it_covers(tmp_path, saved):
    save_model(saved, tmp_path)
    with init_empty_weights():
        model = Net()
    load_checkpoint_in_model(model, tmp_path, device_map={"": "meta", "body": torch.device("cpu")})
    assert {parameter.device.type for parameter in model.body.parameters()} == {"cpu"}
    assert model.embed.weight.is_meta
    assert torch.equal(model.body[2].weight, saved.body[2].weight)


def test_maps_that_do_not_fit_are_refused(tmp_path, saved):
    save_model(saved, tmp_path)
    with pytest.warns(UserWarning, match="Did you mean `body`"):
        load_checkpoint_in_model(Net(), tmp_path, device_map={"": "cpu", "bodi": "cpu"})
    with pytest.raises(ConfigError, match="does not cover embed.weight"):
        load_checkpoint_in_model(Net(), tmp_path, device_map={"body": "cpu"})
    with pytest.raises(ConfigError, match="leaves weights on disk. Pass an `offload_folder`"):
        load_checkpoint_in_model(Net(), tmp_path, device_map={"": "disk"})


def test_a_checkpoint_of_another_model_leaves_this_one_untouched(tmp_path):
    save_file(
        {"body.0.weight": torch.ones(4, 4), "body.0.bias": torch.ones(3)}, tmp_path / "model.safetensors"
    )
    model = Net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        CheckpointError, match=r"`body\.0\.bias` has the shape \(3,\) in the checkpoint and \(4,\)"
    ):
        load_checkpoint_in_model(model, tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_names_that_do_not_match_are_logged_or_with_strict_an_error(tmp_path, saved, caplog):
    state = dict(saved.state_dict())
    state["body.0.wieght"] = state.pop("body.0.weight")
    save_model(state, tmp_path)
    message = (
        r"(?s)not in the checkpoint: `body\.0\.weight`.*`body\.0\.wieght` Did you mean `body\.0\.weight`"
    )
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint_in_model(Net(), tmp_path, strict=True)
    model = Net()
    load_checkpoint_in_model(model, tmp_path)
    assert re.search(message, caplog.text)
    assert torch.equal(model.body[2].weight, saved.body[2].weight)


def test_tied_weights_that_differ_in_the_checkpoint_are_refused(tmp_path, saved):
    state = {**saved.state_dict(), "head.weight": torch.zeros(8, 4)}
    save_model(state, tmp_path)
    with pytest.raises(CheckpointError, match="`embed.weight` and `head.weight` are one tied weight"):
        load_checkpoint_in_model(Net(), tmp_path)
    state["head.weight"] = state["embed.weight"].clone()
    save_model(state, tmp_path)
    load_checkpoint_in_model(Net(), tmp_path, strict=True)


def test_a_checkpoint_with_the_second_name_only_fills_both(tmp_path, saved):
    state = dict(saved.state_dict())
    del state["embed.weight"]
    save_model(state, tmp_path)
    with init_empty_weights():
        model = Net()
    load_checkpoint_in_model(model, tmp_path, strict=True)
    assert_same(model, saved)
    assert model.head.weight is model.embed.weight


def test_shards_of_different_saves_are_refused(tmp_path, saved):
    *_, index = save_model(saved, tmp_path, 100)
    content = json.loads(index.read_text())
    content["weight_map"]["body.0.weight"] = content["weight_map"]["body.2.weight"]
    index.write_text(json.dumps(content))
    with pytest.raises(
        CheckpointError, match=r"lacks `body\.0\.weight`, which its index lists\. Files of two"
    ):
        load_checkpoint_in_model(Net(), tmp_path)


def test_names_that_the_index_does_not_list_are_left_unchanged(tmp_path, saved, caplog):
    *_, index = save_model(saved, tmp_path, 100)
    content = json.loads(index.read_text())
    del content["weight_map"]["body.0.bias"]
    index.write_text(json.dumps(content))
    model = Net()
    before = model.body[0].bias.clone()
    load_checkpoint_in_model(model, tmp_path)
    assert "not in the checkpoint: `body.0.bias`" in caplog.text
    assert torch.equal(model.body[0].bias, before)


class Counter(nn.Linear):
    count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def test_extra_state_of_modules_is_loaded(tmp_path):
    model, fresh = nn.Sequential(Counter(2, 2)), nn.Sequential(Counter(2, 2))
    model[0].count = 7
    save_model(model, tmp_path, safe_serialization=False)
    load_checkpoint_in_model(fresh, tmp_path, strict=True)
    assert fresh[0].count == 7
    assert torch.equal(fresh[0].weight, model[0].weight)


@pytest.mark.parametrize("legacy", [False, True])
def test_load_state_dict_reads_what_torch_save_wrote(tmp_path, saved, legacy):
    path = tmp_path / "any.pt"
    torch.save(saved.state_dict(), path, _use_new_zipfile_serialization=not legacy)
    assert all(
        torch.equal(load_state_dict(path)[name], tensor) for name, tensor in saved.state_dict().items()
    )


def test_load_state_dict_puts_modules_where_the_map_specifies(tmp_path, saved):
    (path,) = save_model(saved, tmp_path)
    loaded = load_state_dict(path, {"": "cpu", "body": "meta", "embed": "disk"})
    assert loaded["body.0.weight"].is_meta
    assert loaded["embed.weight"].device.type == "cpu"
    with pytest.raises(ConfigError, match="does not cover"):
        load_state_dict(path, {"body": "cpu"})


def test_load_state_dict_moves_what_an_extra_state_holds_too(tmp_path):
    state = {"weight": torch.ones(1), "_extra_state": {"scales": [torch.ones(2)], "name": "x"}}
    (path,) = save_model(state, tmp_path, safe_serialization=False)
    loaded = load_state_dict(path, {"": "meta"})
    assert loaded["_extra_state"]["scales"][0].is_meta
    assert loaded["_extra_state"]["name"] == "x"


class Evil:
    def __reduce__(self):
        return (open, ("/tmp/never-written-by-a-test", "w"))


def test_nothing_in_a_file_is_run(tmp_path):
    torch.save({"a": Evil()}, tmp_path / "evil.bin")
    (tmp_path / "plain.bin").write_bytes(pickle.dumps({"a": Evil()}))
    for name in ("evil.bin", "plain.bin"):
        with pytest.raises(CheckpointError, match="is not loaded|is not a readable"):
            load_state_dict(tmp_path / name)


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("keep", [0, 5, 0.5])
def test_truncated_files_are_refused_by_name(tmp_path, saved, safe, keep):
    (path,) = save_model(saved, tmp_path, safe_serialization=safe)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if keep < 1 else keep])
    with pytest.raises(CheckpointError, match=path.name):
        load_state_dict(path)


def test_a_file_that_holds_no_state_dict_is_refused(tmp_path):
    torch.save([1, 2], tmp_path / "list.bin")
    with pytest.raises(CheckpointError, match="contains a list, not a state dict"):
        load_state_dict(tmp_path / "list.bin")
    with pytest.raises(CheckpointError, match="no checkpoint file at"):
        load_state_dict(tmp_path / "nowhere.bin")
