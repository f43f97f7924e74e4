import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from accel import Accelerator

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_state")]


def build(seed, **options):
    accelerator = Accelerator(**options)
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(2000, 2000) for _ in range(10)))
    return accelerator, *accelerator.prepare(model, torch.optim.Adam(model.parameters()))


def test_a_background_save_has_the_values_at_the_time_of_the_call_on_a_device(tmp_path):
    accelerator, model, optimizer = build(0)
    for name in ("first", "second"):
        accelerator.backward(model(torch.ones(4, 2000, device=accelerator.device)).sum())
        optimizer.step()
        expected = {key: value.clone() for key, value in model.state_dict().items()}
        moments = optimizer.state_dict()["state"][0]["exp_avg"].clone()
        handle = accelerator.save_state(tmp_path / name, blocking=False)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7)  # requested at once: the device must copy first
            optimizer.optimizer.state[next(iter(model.parameters()))]["exp_avg"].fill_(7)
        drawn = torch.rand(3, device=accelerator.device)
        handle.wait()
        accelerator.load_state(tmp_path / name, verify=True)
        assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())
        assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], moments)
        assert torch.equal(torch.rand(3, device=accelerator.device), drawn)


def test_a_blocking_save_is_read_without_a_device(tmp_path):
    accelerator, _, optimizer = build(0)
    optimizer.step()
    accelerator.save_state(tmp_path / "a")
    state = torch.load(tmp_path / "a" / "optimizer.bin", weights_only=True)
    assert all(value.device.type == "cpu" for one in state["state"].values() for value in one.values())


@pytest.mark.parametrize("blocking", [True, False])
def test_a_save_from_a_side_stream_has_the_values_that_the_stream_computes(tmp_path, blocking):
    accelerator, model, _ = build(0)
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(400_000_000)  # the device is late
        for parameter in model.parameters():
            parameter.fill_(5)
        saved = accelerator.save_state(tmp_path / "a", blocking=blocking)
    if not blocking:
        saved.wait()
    state = load_file(tmp_path / "a" / "model.safetensors")
    assert all(bool((value == 5).all()) for value in state.values())


def test_a_background_save_pins_no_more_than_a_few_buffers(tmp_path):
    accelerator, model, optimizer = build(0)
    accelerator.backward(model(torch.ones(4, 2000, device=accelerator.device)).sum())
    optimizer.step()  # 480 MB with the moments
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    accelerator.save_state(tmp_path / "a", blocking=False).wait()
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] - before <= 64 * 2**20


@pytest.mark.parametrize("is_saved_on_the_cpu", [True, False])
def test_a_checkpoint_resumes_on_the_other_kind_of_device(tmp_path, is_saved_on_the_cpu):
    numbers = []
    for cpu in (is_saved_on_the_cpu, not is_saved_on_the_cpu):
        accelerator, model, optimizer = build(len(numbers), cpu=cpu)
        if numbers:
            with pytest.warns(
                UserWarning, match="The generators of Python, NumPy and torch on the CPU continue"
            ):
                accelerator.load_state(tmp_path)
        else:
            accelerator.backward(model(torch.ones(4, 2000, device=accelerator.device)).sum())
            optimizer.step()
            accelerator.save_state(tmp_path)
        state = [*model.parameters(), optimizer.state_dict()["state"][0]["exp_avg"], torch.rand(3)]
        numbers.append([tensor.detach().cpu() for tensor in state])
        accelerator.end_training()
        type(accelerator.state)._reset_state(reset_partial_state=True)
    assert all(map(torch.equal, *numbers))
