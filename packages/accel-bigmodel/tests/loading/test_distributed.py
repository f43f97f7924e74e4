from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from accel_bigmodel import (
    init_empty_weights,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
    save_model,
)
from accel_state.errors import AccelError, ConfigError, StateError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("angles", torch.arange(4.0), persistent=False)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def skeleton() -> Net:
    with init_empty_weights():
        return Net()


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (2,)))


def content(model: nn.Module) -> dict[str, list[float]]:
    """Return all full values by name."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().flatten().tolist()
        for name, tensor in tensors.items()
    }


def rank() -> int:
    from accel_state import PartialState

    return PartialState().process_index


def _load_sharded(folder: str, broadcast: bool, dtype: str | None, build=skeleton) -> dict[str, list[float]]:
    own = rank()
    model = sharded(build())
    where = folder if own == 0 or not broadcast else "/nowhere"
    load_checkpoint_in_model(model, where, broadcast_from_rank0=broadcast, dtype=dtype)
    assert model.body.weight.to_local().shape == (2, 4)
    return content(model)


@pytest.mark.parametrize("broadcast", [False, True])
def test_each_process_gets_its_part_of_full_tensors(tmp_path, world, broadcast):
    save_model(net(), tmp_path, max_shard_size=100)
    assert world(2).run(_load_sharded, str(tmp_path), broadcast, None) == [content(net())] * 2


def _load_sharded_strictly(folder: str, broadcast: bool) -> dict[str, list[float]]:
    rank()
    model = sharded(net())
    torch.nn.init.zeros_(model.embed.weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_checkpoint_in_model(model, folder, broadcast_from_rank0=broadcast, strict=True)
    return content(model)


@pytest.mark.parametrize("broadcast", [False, True])
def test_one_name_of_a_tied_weight_is_enough(tmp_path, world, broadcast):
    state = {name: tensor for name, tensor in net().state_dict().items() if name != "head.weight"}
    safetensors.torch.save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert world(2).run(_load_sharded_strictly, str(tmp_path), broadcast) == [content(net())] * 2


def test_another_dtype_is_what_the_parts_are_stored_in(tmp_path, world):
    save_model(net(), tmp_path)
    wanted = content(net().bfloat16())
    wanted["angles"] = content(net())["angles"]  # not in the checkpoint
    assert world(2).run(_load_sharded, str(tmp_path), True, "bfloat16") == [wanted] * 2


def _load_own_parts(folder: str) -> dict[str, list[float]]:
    own, trained = rank(), sharded(net())
    path = Path(folder, f"part-{own}.bin")
    torch.save(trained.state_dict(), path)
    model = sharded(skeleton())
    load_checkpoint_in_model(model, path, full_state_dict=False)
    return content(model)


def test_each_process_gets_back_the_parts_that_it_wrote(tmp_path, world):
    assert world(2).run(_load_own_parts, str(tmp_path)) == [content(net())] * 2


def _load_whole(folder: str) -> tuple[dict[str, list[float]], bool, bool]:
    model = skeleton()
    load_checkpoint_and_dispatch(model, folder if rank() == 0 else "/nowhere", broadcast_from_rank0=True)
    return content(model), model.head.weight is model.embed.weight, model.body.weight.requires_grad


def test_models_that_every_process_has_in_full_are_sent_too_and_stay_tied(tmp_path, world):
    save_model(net(), tmp_path)
    assert world(2).run(_load_whole, str(tmp_path)) == [(content(net()), True, True)] * 2


def _fail(folder: str) -> str:
    rank()
    try:
        load_checkpoint_in_model(skeleton(), folder, broadcast_from_rank0=True, strict=True)
    except AccelError as error:
        return str(error)
    return "nothing"


def test_what_the_first_process_cannot_read_is_an_error_on_all(tmp_path, world):
    first, second = world(2).run(_fail, str(tmp_path))
    assert "has no checkpoint" in first
    assert second == f"Rank 0 could not read the checkpoint: {first}"
    save_model(nn.Linear(4, 4), tmp_path)
    first, second = world(2).run(_fail, str(tmp_path))
    assert "does not fit the model" in first
    assert first in second


def _map_and_broadcast(folder: str) -> None:
    rank()
    with pytest.raises(ConfigError, match="`device_map` has no effect if weights are sharded"):
        load_checkpoint_in_model(skeleton(), folder, device_map={"": "cpu"}, broadcast_from_rank0=True)


def test_a_map_has_no_effect_there(tmp_path, world):
    world(2).run(_map_and_broadcast, str(tmp_path))


def test_without_a_process_group_there_is_no_rank_to_send_to(tmp_path):
    with pytest.raises(StateError, match="needs a process group"):
        load_checkpoint_in_model(skeleton(), tmp_path, broadcast_from_rank0=True)
