import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from accel import Accelerator

pytestmark = pytest.mark.usefixtures("fresh_state")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def save(folder, **options):
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(net())
    accelerator.save_model(model, folder, **options)
    return sorted(accelerator.get_state_dict(model))


def test_saved_weights_load_into_plain_pytorch(tmp_path):
    save(tmp_path)
    loaded = load_file(tmp_path / "model.safetensors")
    fresh = net()
    assert set(loaded) == set(fresh.state_dict())
    assert all(torch.equal(loaded[name], value) for name, value in fresh.state_dict().items())


def test_weights_of_two_processes_are_saved_once_under_their_own_names(world, tmp_path):
    names = world(2).run(save, str(tmp_path))
    assert names[0] == names[1] == sorted(net().state_dict())
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert sorted(load_file(tmp_path / "model.safetensors")) == names[0]


def test_large_weights_are_split_with_an_index(tmp_path):
    save(tmp_path, max_shard_size=200)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1


def test_the_older_format_loads_without_unpickling_freely(tmp_path):
    save(tmp_path, safe_serialization=False)
    assert set(torch.load(tmp_path / "pytorch_model.bin", weights_only=True)) == set(net().state_dict())


def test_unwrapping_gives_back_the_model_and_its_own_forward():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = net()
    forward = type(model).forward
    prepared = accelerator.prepare(model)
    assert prepared(torch.randn(4, 4)).dtype == torch.float32
    plain = accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
    assert plain is model
    assert plain.forward.__func__ is forward
