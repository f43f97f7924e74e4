"""Runs on process groups that name a backend for each type of device."""

import gc
import socket

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from accel import Accelerator, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
from accel_state.environment import patch_environment
from accel_state.runtime import reset_runtime
from tools.harness.models import make_batches, make_model
from tools.harness.scripts import run_script


def train_on_gloo_for_the_cpu(folder):
    dist.destroy_process_group()
    reset_runtime(keep_process_group=True)
    group = InitProcessGroupKwargs(backend="cpu:gloo", init_method=f"file://{folder}/meet")
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, cpu_offload=True, state_dict_type="FULL_STATE_DICT"
    )
    accelerator = Accelerator(cpu=True, kwargs_handlers=[group], fsdp_plugin=plugin)
    assert dist.get_backend_config() == "cpu:gloo"
    model = make_model("odd")
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    accelerator.backward(model(make_batches(2)[accelerator.process_index]).square().mean())
    accelerator.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    accelerator.save_state(folder / "state")
    before = accelerator.get_state_dict(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().zero_()
    accelerator.load_state(folder / "state")
    after = accelerator.get_state_dict(model)
    same = all(torch.equal(after[name], value) for name, value in before.items())
    return str(accelerator.state).splitlines()[0], same, before


def test_a_group_with_a_backend_for_the_cpu_trains_saves_and_loads(world, tmp_path):
    model = make_model("odd")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for rows in make_batches(2):
        (model(rows).square().mean() / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    (line, same, state), (other_line, *_) = world(2).run(train_on_gloo_for_the_cpu, tmp_path)
    assert line == other_line == "Distributed environment: FSDP  Backend: gloo"
    assert same
    for name, value in model.named_parameters():
        torch.testing.assert_close(state[name], value.detach(), rtol=0, atol=1e-6)


LEAVES_EARLY = """
import os
import torch
from accel import Accelerator

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(1, 1))
for _ in range(2):
    accelerator.backward(model(torch.ones(1, 1)).sum())
loss = model(torch.ones(1, 1)).sum()
if accelerator.process_index == 1:
    os._exit(0)
for wait in (lambda: accelerator.backward(loss), accelerator.wait_for_everyone):
    try:
        wait()
    except RuntimeError as error:
        print(*error.__notes__, flush=True)
os._exit(0)
"""


def test_a_wait_for_a_rank_that_left_names_the_call(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LEAVES_EARLY)
    lines = run_script(script, num_processes=2, preload=("accel",)).stdout.splitlines()
    for line, call in zip(lines, ("backward", "wait_for_everyone"), strict=True):
        assert line.startswith(f"This rank was in `{call}`, called from {script}:")
        assert "`accel launch --debug` names" in line


LEAVES_AT_ITS_END = """
import sys
import torch
from accel import Accelerator

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(1, 1))
calls = {
    "backward": lambda: accelerator.backward(model(torch.ones(1, 1)).sum()),
    "wait_for_everyone": accelerator.wait_for_everyone,
    "accel_ops.gather": lambda: accelerator.gather(torch.ones(1)),
}
call = calls[sys.argv[1]]
for _ in range(3 - accelerator.process_index):
    call()
"""


@pytest.mark.parametrize("call", ["backward", "wait_for_everyone", "accel_ops.gather"])
def test_a_rank_that_left_is_named_by_the_one_that_waits_for_it(tmp_path, call):
    script = tmp_path / "train.py"
    script.write_text(LEAVES_AT_ITS_END)
    done = run_script(script, call, num_processes=2, preload=("accel",))
    assert done.returncode == 1
    assert f"This rank was in `{call}`, called from {script}:" in done.stderr, done.stderr
    assert (
        "waited for the other ranks to call it too, but rank 1 had left: the script had ended" in done.stderr
    )


def run_again(port):
    if dist.is_initialized():
        dist.destroy_process_group()
    reset_runtime()
    precisions = []
    with patch_environment(master_addr="127.0.0.1", master_port=port):
        for precision in ("bf16", "no"):
            accelerator = Accelerator(cpu=True, mixed_precision=precision)
            model = accelerator.prepare(torch.nn.Linear(2, 1))
            accelerator.backward(model(torch.ones(1, 2)).mean())
            ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
            precisions.append(accelerator.mixed_precision)
            accelerator.end_training()
            assert accelerator.num_processes == len(ranks)
    return ranks, precisions


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_an_accelerator_after_the_end_of_training_starts_a_run_with_its_own_settings(world, num_ranks):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    assert world(num_ranks).run(run_again, port) == num_ranks * [(list(range(num_ranks)), ["bf16", "no"])]


def meshes_after_the_end():
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = accelerator.prepare(torch.nn.Linear(4, 2))
    accelerator.backward(model(torch.ones(1, 4)).sum())
    kept = [one.grad.full_tensor() for one in model.parameters()]
    accelerator.end_training()
    del accelerator, model
    gc.collect()
    return len(kept), sum(isinstance(one, DeviceMesh) for one in gc.get_objects())


def test_the_end_of_training_releases_meshes_and_so_their_groups_with_the_threads(world):
    assert world(2).run(meshes_after_the_end) == [(2, 0), (2, 0)]
