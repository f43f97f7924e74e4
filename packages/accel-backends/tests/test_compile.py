from __future__ import annotations

import copy
import pickle
import shutil
import sys

import pytest
import torch
from torch import nn

from accel_backends import (
    TorchDynamoPlugin,
    compile_model,
    compile_regions,
    compile_regions_deepspeed,
    extract_model_from_parallel,
    has_compiled_regions,
    is_compiled_module,
)
from accel_backends.activation_checkpointing import checkpoint_units
from accel_backends.autocast_forward import wrap_forward
from accel_backends.compile import check_compiler, compile_forwards, is_compiled
from accel_state.devices import find_vendor
from accel_state.errors import ConfigError
from tools.harness.scripts import run_command

ROWS = torch.randn(3, 4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows):
        return rows + torch.tanh(self.layer(rows))


class Net(nn.Module):
    def __init__(self, num_blocks=4):
        super().__init__()
        self.embedding = nn.Embedding(3, 4)
        self.stem = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.0)
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, rows):
        rows = self.dropout(self.stem(rows + self.embedding.weight[0]))
        for block in self.blocks:
            rows = block(rows)
        return self.body(rows)


class Counting:
    """A backend that counts the graphs it is given."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        return graph.forward


@pytest.fixture(autouse=True)
def no_limit_is_reached():
    # torch compiles the same code, here that of `nn.Sequential`, eight times in a process and then no more.
    torch._dynamo.reset()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def compiled_parts(model):
    return [name for name, module in model.named_modules() if is_compiled(module)]


@pytest.mark.parametrize(
    ("device", "hint"),
    [
        ("hpu", "Use `dynamo_backend=hpu_backend`"),
        ("neuron", "Use `dynamo_backend=neuron`"),
        ("xla", "prepare `torch.compile.model, backend=.openxla"),
    ],
)
def test_torchs_own_compiler_is_refused_where_it_generates_no_code(device, hint):
    with pytest.raises(
        ConfigError, match=f"`dynamo_backend=inductor` generates no code for `{device}`.*{hint}"
    ):
        check_compiler(TorchDynamoPlugin(backend="inductor"), find_vendor(device))
    for name, vendor in (("aot_eager", device), ("no", device), ("inductor", "mps"), ("inductor", "npu")):
        check_compiler(TorchDynamoPlugin(backend=name), find_vendor(vendor))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"backend": "no"}, []),
        ({"backend": "eager"}, [""]),
        (
            {"backend": "eager", "use_regional_compilation": True},
            ["stem", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "body"],
        ),
    ],
)
def test_a_model_is_compiled_as_the_plugin_specifies(model, settings, expected):
    keys, modules = list(model.state_dict()), list(model.modules())
    compile_model(model, TorchDynamoPlugin(**settings))
    assert compiled_parts(model) == expected
    assert (list(model.state_dict()), list(model.modules())) == (keys, modules)


@pytest.mark.parametrize(
    "make",
    [lambda: nn.Linear(4, 4), lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), lambda: Net(2)],
    ids=["Linear", "Sequential", "Net"],
)
def test_torchs_own_classes_are_really_compiled(make):
    model, backend = make(), Counting()
    expected = model(ROWS)
    compile_forwards([model], backend=backend, fullgraph=True)
    torch.testing.assert_close(model(ROWS), expected)
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("num_blocks", [2, 6])
def test_equal_blocks_are_compiled_once_however_many(num_blocks):
    backend = Counting()
    model = compile_regions(Net(num_blocks), backend=backend, fullgraph=True)
    model(ROWS)
    assert len([graph for graph in backend.graphs if "tanh" in graph.code]) == 1
    assert len(backend.graphs) == 3  # the blocks, the stem and the body


def test_compiled_regions_train_like_the_same_model_uncompiled(model):
    plain = copy.deepcopy(model)
    assert compile_regions(model, backend="aot_eager", fullgraph=True) is model
    assert not is_compiled_module(model)
    for one in (model, plain):
        one(ROWS).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_model_without_repeated_blocks_is_compiled_in_full():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    compile_regions_deepspeed(model, backend="eager")
    assert compiled_parts(model) == [""]


@pytest.mark.parametrize(
    "compiled",
    [
        lambda model: torch.compile(model, backend="eager"),
        lambda model: model.compile(backend="eager") or model,
        lambda model: compile_regions(model, backend="eager"),
        lambda model: wrap_forward(compile_regions(model, backend="eager"), device_type="cpu") or model,
        lambda model: setattr(model, "body", torch.compile(model.body, backend="eager")) or model,
    ],
    ids=["torch.compile", "module.compile", "regions", "regions under autocast", "a part by hand"],
)
def test_what_is_compiled_already_is_left_unchanged(model, compiled):
    model = compiled(model)
    before = compiled_parts(model)
    assert has_compiled_regions(model)
    compile_model(model, TorchDynamoPlugin(backend="eager", use_regional_compilation=not before[0]))
    assert compiled_parts(model) == before


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("is_regional", [True, False])
def test_a_copy_of_a_compiled_model_computes_with_its_own_parameters(model, copied, is_regional):
    plugin = TorchDynamoPlugin(backend="eager", use_regional_compilation=is_regional)
    compile_model(model, plugin)
    expected = model(ROWS)
    other = copied(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert compiled_parts(other) == compiled_parts(model)
    torch.testing.assert_close(other(ROWS), expected)


@pytest.mark.parametrize("is_regional", [True, False])
def test_autocast_stays_outside_and_can_be_taken_off(model, is_regional):
    plain = copy.deepcopy(model)
    wrap_forward(model, device_type="cpu", dtype=torch.bfloat16)
    wrap_forward(plain, device_type="cpu", dtype=torch.bfloat16)
    plugin = TorchDynamoPlugin(backend="aot_eager", fullgraph=True, use_regional_compilation=is_regional)
    compile_model(model, plugin)
    outputs = model(ROWS)
    assert outputs.dtype is torch.float32
    torch.testing.assert_close(outputs, plain(ROWS))
    for one in (model, plain):
        assert extract_model_from_parallel(one, keep_fp32_wrapper=False, keep_torch_compile=False) is one
    assert is_compiled(model) is not is_regional
    torch.testing.assert_close(model(ROWS), plain(ROWS))


@pytest.mark.parametrize("is_traceable", [True, False])
def test_checkpointed_blocks_are_compiled(is_traceable):
    model, backend = Net(1), Counting()
    checkpoint_units(model.blocks, is_traceable=is_traceable)
    compile_regions(model, backend=backend)
    model(ROWS).sum().backward()
    assert len([graph for graph in backend.graphs if is_traceable or "tanh" in graph.code]) >= 1
    assert model.stem.weight.grad is not None


INDUCTOR_SCRIPT = """
import copy
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
plain = copy.deepcopy(model)
compile_model(model, TorchDynamoPlugin(backend="inductor", fullgraph=True, use_regional_compilation=True))
rows = torch.randn(3, 4)
for one in (model, plain):
    one(rows).sum().backward()
for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
    torch.testing.assert_close(ours.grad, theirs.grad)
print("same gradients")
"""


@pytest.mark.engine("long")
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
