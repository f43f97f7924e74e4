from __future__ import annotations

import shutil
import sys

import pytest
import torch
from torch import nn

from accel_backends import (
    TorchDynamoPlugin,
    compile_model,
    has_compiled_regions,
    is_compiled_module,
)
from accel_backends.precisions.forward import wrap_forward
from accel_backends.transforms.compile import check_compiler
from accel_state.devices import find_vendor
from accel_state.errors import ConfigError
from tools.harness.scripts import run_command


def blocks():
    return nn.Sequential(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]))


def test_no_backend_compiles_nothing():
    model = nn.Linear(2, 2)
    assert compile_model(model, TorchDynamoPlugin(backend="no")) is model


@pytest.mark.parametrize(
    ("device", "way_out"),
    [
        ("hpu", "Use `dynamo_backend=hpu_backend`"),
        ("neuron", "Use `dynamo_backend=neuron`"),
        ("xla", "prepare `torch.compile.model, backend=.openxla"),
    ],
)
def test_torchs_own_compiler_is_refused_where_it_generates_no_code(device, way_out):
    with pytest.raises(
        ConfigError, match=f"`dynamo_backend=inductor` generates no code for `{device}`.*{way_out}"
    ):
        check_compiler(TorchDynamoPlugin(backend="inductor"), find_vendor(device))
    for name, vendor in (("aot_eager", device), ("no", device), ("inductor", "mps"), ("inductor", "npu")):
        check_compiler(TorchDynamoPlugin(backend=name), find_vendor(vendor))


def test_a_model_is_compiled_as_the_plugin_specifies():
    compiled = compile_model(nn.Sequential(nn.Linear(2, 2)), TorchDynamoPlugin(backend="eager"))
    assert is_compiled_module(compiled)
    assert list(compiled.state_dict()) == ["0.weight", "0.bias"]
    assert compiled(torch.ones(1, 2)).shape == (1, 2)


def test_regions_are_compiled_if_the_plugin_requests_it():
    plugin = TorchDynamoPlugin(backend="eager", use_regional_compilation=True)
    assert has_compiled_regions(compile_model(blocks(), plugin))
    assert is_compiled_module(compile_model(blocks(), TorchDynamoPlugin(backend="eager")))


def test_what_is_compiled_already_is_left_alone():
    plugin = TorchDynamoPlugin(backend="eager", use_regional_compilation=True)
    whole = torch.compile(nn.Linear(2, 2), backend="eager")
    regional = compile_model(blocks(), plugin)
    assert compile_model(whole, plugin) is whole
    assert compile_model(regional, plugin) is regional


def test_mixed_precision_and_regions_go_together():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

        def forward(self, rows):
            for block in self.blocks:
                rows = block(rows)
            return rows

    model = Net()
    wrap_forward(model, device_type="cpu", dtype=torch.bfloat16)
    compiled = compile_model(model, TorchDynamoPlugin(backend="eager", use_regional_compilation=True))
    seen = []
    compiled.blocks[1].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    rows = torch.ones(1, 2)
    output = compiled(rows)
    assert (output.dtype, seen) == (torch.float32, [torch.bfloat16])
    torch.testing.assert_close(output, model(rows))


INDUCTOR_SCRIPT = """
import torch
import torch._inductor.config
from torch import nn
from accel_backends import TorchDynamoPlugin, compile_model

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, rows):
        for block in self.blocks:
            rows = torch.tanh(block(rows))
        return rows

torch._inductor.config.compile_threads = 1
torch.manual_seed(0)
model = Net()
compiled = compile_model(model, TorchDynamoPlugin(backend="inductor", use_regional_compilation=True))
rows = torch.randn(3, 4)
compiled(rows).sum().backward()
gradients = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
model(rows).sum().backward()
for ours, parameter in zip(gradients, model.parameters(), strict=True):
    torch.testing.assert_close(ours, parameter.grad)
print("same gradients")
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_inductor_trains_a_regional_model(tmp_path):
    """In a separate process: the compiler starts workers that outlive the test."""
    script = tmp_path / "regional.py"
    script.write_text(INDUCTOR_SCRIPT)
    # Its own cache: what another installation of torch has left in the common one may not fit this one. No vector
    # instructions: finding out which ones there are takes ten compilations.
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    result = run_command([sys.executable, str(script)], env=env, timeout_s=240)
    assert result.returncode == 0, result.stderr
    assert "same gradients" in result.stdout
