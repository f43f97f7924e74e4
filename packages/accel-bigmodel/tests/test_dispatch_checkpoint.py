from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accel_bigmodel import (
    init_empty_weights,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
    save_model,
)
from accel_checkpoint import progress
from accel_state.errors import ConfigError, UnknownNameError

pytestmark = pytest.mark.usefixtures("execution_memory")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])


def skeleton() -> nn.Sequential:
    with init_empty_weights():
        return net()


X = torch.randn(2, 8)


@pytest.mark.parametrize("mode", ["auto", "balanced", "balanced_low_0", "sequential"])
def test_every_mode_fills_memory_and_leaves_the_rest_in_the_files(tmp_path, mode):
    written = save_model(net(), tmp_path, max_shard_size=600)
    model = load_checkpoint_and_dispatch(skeleton(), tmp_path, device_map=mode, max_memory={"cpu": 900})
    assert model.hf_device_map == {"0": "cpu", "1": "cpu", "2": "disk", "3": "disk"}
    assert [layer.weight.is_meta for layer in model] == [False, False, True, True]
    assert sorted(tmp_path.iterdir()) == sorted(written)
    with torch.no_grad():
        assert torch.equal(model(X), net()(X))


def test_unknown_modes_are_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean `balanced`"):
        load_checkpoint_and_dispatch(skeleton(), tmp_path, device_map="balance")


def test_without_a_map_the_weights_are_only_loaded(tmp_path):
    save_model(net(), tmp_path)
    model = load_checkpoint_and_dispatch(skeleton(), tmp_path)
    assert not hasattr(model, "hf_device_map")
    assert torch.equal(model(X), net()(X))


@pytest.mark.parametrize("folder", [True, False])
def test_another_dtype_is_cast_once_into_the_folder_or_on_the_way(tmp_path, folder):
    save_model(net(), tmp_path / "w")
    target = tmp_path / "o" if folder else None
    model = load_checkpoint_and_dispatch(
        skeleton(), tmp_path / "w", device_map={"": "disk"}, dtype="bfloat16", offload_folder=target
    )
    assert model[0].weight.dtype == torch.bfloat16
    assert (tmp_path / "o").exists() == folder
    with torch.no_grad():
        assert torch.equal(model(X.bfloat16()), net().bfloat16()(X.bfloat16()))


def test_pickled_weights_need_a_folder(tmp_path):
    save_model(net(), tmp_path / "w", safe_serialization=False)
    with pytest.raises(
        ConfigError,
        match=r"`0\.weight` on disk, but .* cannot be read tensor by tensor. Pass an `offload_folder`",
    ):
        load_checkpoint_and_dispatch(skeleton(), tmp_path / "w", device_map={"": "disk"})
    model = load_checkpoint_and_dispatch(
        skeleton(), tmp_path / "w", device_map={"": "disk"}, offload_folder=tmp_path / "o"
    )
    with torch.no_grad():
        assert torch.equal(model(X), net()(X))


def test_mapped_weights_are_private_when_written(tmp_path):
    (path,) = save_model(net(), tmp_path)
    before = path.read_bytes()
    model = skeleton()
    load_checkpoint_in_model(model, tmp_path, mmap=True)
    assert torch.equal(model(X), net()(X))
    with torch.no_grad():
        model[0].weight.zero_()
    assert path.read_bytes() == before
    assert model[0].weight.abs().sum() == 0


def _load_on_rank_0_only(folder: str) -> list[float]:
    from accel_state import PartialState

    model = skeleton()
    where = folder if PartialState().process_index == 0 else "/nowhere"
    load_checkpoint_in_model(model, where, broadcast_from_rank0=True)
    return [parameter.double().sum().item() for parameter in model.parameters()]


def test_one_process_reads_for_all(tmp_path, world):
    save_model(net(), tmp_path)
    wanted = [parameter.double().sum().item() for parameter in net().parameters()]
    assert world(2).run(_load_on_rank_0_only, str(tmp_path)) == [wanted, wanted]


@pytest.mark.parametrize("shift", range(0, 64, 8))
def test_files_that_others_wrote_give_the_same_results_wherever_their_tensors_begin(tmp_path, shift):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    save_file(model.state_dict(), tmp_path / "model.safetensors", metadata={"shifted": "x" * shift})
    with init_empty_weights():
        skeleton = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    load_checkpoint_and_dispatch(skeleton, tmp_path, device_map={"": "disk"})
    x = torch.randn(1, 256)
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(skeleton(x), model(x), rtol=1e-4, atol=1e-6)  # sums in another order


def wide(num_layers=6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(num_layers)])


def in_memory_and_on_disk(folder, device, *, num_here, num_layers=6) -> nn.Module:
    save_model(wide(num_layers), folder)
    with init_empty_weights():
        model = wide(num_layers)
    here = "cpu" if device.type == "cpu" else device.index
    places = {str(n): here if n < num_here else ("cpu", "disk")[n % 2] for n in range(num_layers)}
    return load_checkpoint_and_dispatch(model, folder, device_map=places)


@pytest.mark.parametrize("num_here", [1, 4])
def test_a_model_in_three_places_computes_bit_for_bit_as_in_one(tmp_path, device, num_here):
    model = in_memory_and_on_disk(tmp_path, device, num_here=num_here)
    resident = wide().to(device)
    with torch.no_grad():
        for rows in torch.randn(4, 2, 1024, device=device):
            assert torch.equal(model(rows), resident(rows))


@pytest.mark.gpu
def test_two_threads_on_streams_of_their_own_compute_as_one(tmp_path):
    device = torch.device("cuda", 0)
    model = in_memory_and_on_disk(tmp_path, device, num_here=1)
    resident = wide().to(device)
    rows = torch.randn(40, 2, 1024, device=device)
    with torch.no_grad():
        expected = [resident(one) for one in rows]
    torch.cuda.synchronize()

    def forwards(places):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            found = [(place, model(rows[place])) for place in places]
            torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(forwards, (range(0, 40, 2), range(1, 40, 2))):
            for place, output in found:
                assert torch.equal(output, expected[place])


@pytest.mark.gpu
def test_no_more_of_a_gpu_is_used_than_the_map_was_given(tmp_path):
    num_layers, layer_bytes = 16, 4 * 1024 * 1025
    limit = 6 * layer_bytes
    save_model(wide(num_layers), tmp_path)
    with init_empty_weights():
        model = wide(num_layers)
    wide(1).cuda()(torch.ones(2, 1024, device="cuda"))  # cuBLAS takes its workspace
    before = torch.cuda.memory_allocated()
    model = load_checkpoint_and_dispatch(
        model, tmp_path, device_map="auto", max_memory={0: limit, "cpu": "1GB"}
    )
    assert "cpu" in model.hf_device_map.values()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        for _ in range(5):  # the host runs ahead of the device
            model(torch.ones(2, 1024, device="cuda"))
    torch.cuda.synchronize()
    activations = 1 << 20
    assert torch.cuda.max_memory_allocated() - before <= limit + activations


@pytest.mark.parametrize("is_long", [True, False])
def test_loading_that_takes_long_shows_a_bar(tmp_path, capsys, monkeypatch, is_long):
    pytest.importorskip("tqdm")
    save_model(net(), tmp_path)
    monkeypatch.setattr(progress, "QUIET_S", 0 if is_long else 20)
    load_checkpoint_and_dispatch(skeleton(), tmp_path)
    shown = capsys.readouterr().err
    assert "Loading weights: 100%" in shown if is_long else not shown
