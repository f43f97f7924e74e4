"""Runs on process groups that name a backend for each type of device."""

import torch
import torch.distributed as dist

from accel import Accelerator, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
from accel_state.runtime import reset_runtime
from tools.harness.models import make_batches, make_model


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
