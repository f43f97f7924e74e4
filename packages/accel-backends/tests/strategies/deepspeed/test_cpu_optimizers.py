import sys
from types import SimpleNamespace

import pytest
import torch

from accel_backends.strategies.deepspeed.cpu_optimizers import cpu_optimizer_of
from accel_state.errors import ConfigError
from tools.harness.scripts import run_command

PARAMETERS = [torch.nn.Parameter(torch.ones(2))]


class Lion(torch.optim.SGD):
    pass


class AdamW32bit(torch.optim.SGD):
    """As in bitsandbytes, where it derives from none of torch's."""


class AdamW8(AdamW32bit):
    """As `bitsandbytes.optim.AdamW(optim_bits=8)`."""

    args = SimpleNamespace(optim_bits=8)


class Mine(torch.optim.AdamW):
    pass


@pytest.mark.parametrize(
    ("optimizer", "name", "arguments"),
    [
        (torch.optim.Adam(PARAMETERS), "DeepSpeedCPUAdam", {"adamw_mode": False}),
        (torch.optim.AdamW(PARAMETERS), "DeepSpeedCPUAdam", {"adamw_mode": True}),
        (Mine(PARAMETERS), "DeepSpeedCPUAdam", {"adamw_mode": True}),
        (torch.optim.Adagrad(PARAMETERS), "DeepSpeedCPUAdagrad", {}),
        (Lion(PARAMETERS), "DeepSpeedCPULion", {}),
        (AdamW32bit(PARAMETERS), "DeepSpeedCPUAdam", {"adamw_mode": True}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_optimizer_has_its_version_on_the_cpu(optimizer, name, arguments):
    found = cpu_optimizer_of(optimizer)
    assert (found.name, found.arguments) == (name, arguments)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (torch.optim.SGD(PARAMETERS), "no version of `SGD` that steps on the CPU"),
        (
            torch.optim.Adam(PARAMETERS, amsgrad=True),
            "`amsgrad` is True in `Adam`, which DeepSpeed's `DeepSpeedCPUAdam",
        ),
        (
            torch.optim.Adagrad(PARAMETERS, initial_accumulator_value=0.1),
            "`initial_accumulator_value` is 0.1",
        ),
        (
            AdamW8(PARAMETERS),
            "`optim_bits` is 8 in `AdamW8`, but DeepSpeed's `DeepSpeedCPUAdam` keeps its state in 32 bits. Set it to",
        ),
    ],
)
def test_what_deepspeed_has_no_version_of_is_refused(optimizer, message):
    with pytest.raises(ConfigError, match=message):
        cpu_optimizer_of(optimizer)


STEPS = """
import torch
from accel_backends import map_pytorch_optim_to_deepspeed

for kind in (torch.optim.AdamW, torch.optim.Adam):
    ours, theirs = (torch.nn.Parameter(torch.full((16,), 2.0)) for _ in range(2))
    group = {"lr": 0.1, "betas": (0.8, 0.9)}
    exchanged = map_pytorch_optim_to_deepspeed(kind([{"params": [ours], **group}], weight_decay=0.1))
    plain = kind([{"params": [theirs], **group}], weight_decay=0.1)
    for _ in range(3):
        ours.grad, theirs.grad = torch.full((16,), 0.3), torch.full((16,), 0.3)
        exchanged.step()
        plain.step()
    assert torch.allclose(ours, theirs, rtol=1e-6), kind  # kernels of another compiler
    assert map_pytorch_optim_to_deepspeed(exchanged) is exchanged
"""


@pytest.mark.engine("deepspeed")
def test_the_exchanged_optimizer_steps_as_the_one_of_torch():
    done = run_command([sys.executable, "-c", STEPS], timeout_s=300)
    assert done.returncode == 0, done.stderr


RESUME = """
import torch
from accel_backends import map_pytorch_optim_to_deepspeed
from accel_backends.strategies.deepspeed.checkpoints.step_counts import restore_step_counts

values = torch.linspace(-1, 1, 16)
ours, theirs = (torch.nn.Parameter(values.clone()) for _ in range(2))
plain = torch.optim.AdamW([theirs], lr=0.1)
exchanged = map_pytorch_optim_to_deepspeed(torch.optim.AdamW([ours], lr=0.1))
for optimizer, parameter in ((plain, theirs), (exchanged, ours)):
    optimizer.state[parameter] = {"step": torch.tensor(1e12), "exp_avg": values / 9, "exp_avg_sq": values**2}
    restore_step_counts(optimizer)
    parameter.grad = values.flip(0)
    optimizer.step()
assert torch.allclose(ours, theirs, rtol=1e-6), (ours, theirs)
"""


@pytest.mark.engine("deepspeed")
def test_a_run_of_any_length_resumes_at_once():
    done = run_command([sys.executable, "-c", RESUME], timeout_s=300)
    assert done.returncode == 0, done.stderr
