from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from accel_bigmodel import (
    BnbQuantizationConfig,
    cpu_offload,
    disk_offload,
    get_keys_to_not_convert,
    get_parameter_device,
    get_quantized_model_device_map,
    has_4bit_bnb_layers,
    init_empty_weights,
    load_and_quantize_model,
    remove_hook_from_submodules,
    save_model,
)
from accel_state.availability import is_bnb_available
from accel_state.errors import ConfigError, NotAvailableError

pytestmark = pytest.mark.filterwarnings("ignore")
needs_bitsandbytes = pytest.mark.skipif(
    not is_bnb_available(), reason="needs bitsandbytes: pip install accel-bigmodel[bnb]"
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 64)
        self.up = nn.Linear(64, 128)
        self.norm = nn.LayerNorm(128)
        self.down = nn.Linear(128, 64)
        self.head = nn.Linear(64, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.down(torch.relu(self.norm(self.up(self.embed(tokens)))))
        return self.head(x.to(self.head.weight.dtype))


TOKENS = torch.arange(16)[None]


@pytest.fixture
def original():
    torch.manual_seed(0)
    return Net().eval()


def skeleton() -> Net:
    with init_empty_weights():
        return Net().eval()


def test_without_bitsandbytes_a_hint_is_given(monkeypatch, original):
    monkeypatch.setattr("accel_bigmodel.quantization.layers.is_bnb_available", lambda: False)
    with pytest.raises(NotAvailableError, match="pip install bitsandbytes"):
        load_and_quantize_model(original, BnbQuantizationConfig(load_in_8bit=True))
    assert not has_4bit_bnb_layers(original)


def test_the_last_module_and_tied_ones_are_left_unchanged(original):
    assert get_keys_to_not_convert(original) == ["head"]
    original.up.weight = original.embed.weight
    assert get_keys_to_not_convert(original) == ["embed", "head", "up"]
    assert get_parameter_device(original) == torch.device("cpu")


def test_maps_count_quantised_bytes(original):
    config = BnbQuantizationConfig(load_in_8bit=True)
    limits = {"cpu": 64 * 16 * 8 + 4000 + 64 * 128 * 2 + 128 * 4 * 3 + 64 * 4}
    assert get_quantized_model_device_map(original, config, "auto", limits) == {"": "cpu"}
    assert get_quantized_model_device_map(original, config, {"": "cpu"}) == {"": "cpu"}


KINDS = {
    "8bit": {"load_in_8bit": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_compute_dtype": "fp32"},
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "fp32"},
    "nf4 double": {
        "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bf16",
    },
}  # fmt: skip
CLOSE = {"8bit": 0.02, "fp4": 0.6, "nf4": 0.5, "nf4 double": 0.5}


@needs_bitsandbytes
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("from_meta", [True, False])
def test_a_quantised_model_is_close_to_the_original(tmp_path, original, kind, from_meta):
    save_model(original, tmp_path)
    model = skeleton() if from_meta else copy.deepcopy(original)
    config = BnbQuantizationConfig(**KINDS[kind])
    quantized = load_and_quantize_model(model, config, tmp_path if from_meta else None)
    with torch.no_grad():
        error = (quantized(TOKENS) - original(TOKENS)).abs().max()
    assert 0 < error < CLOSE[kind]  # bounds of rounding 128-long products to these many bits
    assert quantized.up.weight.dtype == (torch.int8 if kind == "8bit" else torch.uint8)
    assert has_4bit_bnb_layers(quantized) == (kind != "8bit")
    assert type(quantized.head) is nn.Linear


@needs_bitsandbytes
def test_a_checkpoint_is_loaded_into_a_model_that_has_weights_too(tmp_path, original):
    save_model(original, tmp_path)
    config = BnbQuantizationConfig(load_in_8bit=True)
    torch.manual_seed(1)
    other = load_and_quantize_model(Net().eval(), config, weights_location=tmp_path, device_map={"": "cpu"})
    same = load_and_quantize_model(skeleton(), config, weights_location=tmp_path, device_map={"": "cpu"})
    assert torch.equal(other(TOKENS), same(TOKENS))


@needs_bitsandbytes
def test_a_model_of_which_nothing_is_quantised_is_a_warning():
    model = nn.Sequential(nn.Conv1d(1, 1, 1), nn.Linear(2, 2))
    config = BnbQuantizationConfig(load_in_8bit=True)
    with pytest.warns(UserWarning, match=r"Nothing of the Sequential is quantized.* \(1\)"):
        load_and_quantize_model(model, config, device_map={"": "cpu"})


@needs_bitsandbytes
def test_modules_can_be_left_out_and_kept_in_float32(original):
    config = BnbQuantizationConfig(
        load_in_8bit=True, skip_modules=["down"], keep_in_fp32_modules=["norm"], torch_dtype=torch.bfloat16
    )
    model = load_and_quantize_model(original, config)
    assert (type(model.down), type(model.head).__name__) == (nn.Linear, "Linear8bitLt")
    assert (model.norm.weight.dtype, model.embed.weight.dtype) == (torch.float32, torch.bfloat16)


@needs_bitsandbytes
def test_8_bits_are_saved_and_come_back_the_same(tmp_path, original):
    config = BnbQuantizationConfig(load_in_8bit=True)
    model = load_and_quantize_model(original, config)
    save_model(model, tmp_path)
    again = load_and_quantize_model(skeleton(), config, tmp_path)
    with torch.no_grad():
        assert torch.equal(again(TOKENS), model(TOKENS))
    with pytest.raises(ConfigError, match="saved in 8-bit and cannot be loaded in 4-bit"):
        load_and_quantize_model(skeleton(), BnbQuantizationConfig(load_in_4bit=True), tmp_path)


@needs_bitsandbytes
@pytest.mark.parametrize("kind", ["8bit", "nf4"])
def test_parts_can_be_offloaded(tmp_path, original, kind):
    save_model(original, tmp_path / "w")
    config = BnbQuantizationConfig(**KINDS[kind])
    device_map = {"": "cpu", "down": "disk", "head": "disk"}
    model = load_and_quantize_model(
        skeleton(), config, tmp_path / "w", device_map, offload_folder=tmp_path / "o"
    )
    resident = load_and_quantize_model(skeleton(), config, tmp_path / "w")
    assert model.down.weight.is_meta
    with torch.no_grad():
        error = (model(TOKENS) - resident(TOKENS)).abs().max()
        for _ in range(2):
            assert (model(TOKENS) - original(TOKENS)).abs().max() < CLOSE[kind]
    assert error == 0 or kind == "nf4"  # in 4 bits what is on disk keeps its dtype


def test_a_skeleton_needs_weights(monkeypatch):
    if not is_bnb_available():
        pytest.skip("needs bitsandbytes")
    with pytest.raises(ConfigError, match="pass `weights_location`"):
        load_and_quantize_model(skeleton(), BnbQuantizationConfig(load_in_8bit=True))


def int8_weight_tensors(model):
    """The int8 matrices that are in memory: in weights, and where layers keep them during a forward."""
    layers = [module for module in model.modules() if type(module).__name__ == "Linear8bitLt"]
    held = [held for layer in layers for held in (layer.weight, vars(layer.weight).get("CB"), layer.state.CB)]
    return [tensor for tensor in held if tensor is not None and not tensor.is_meta]


@needs_bitsandbytes
@pytest.mark.parametrize("way", ["cpu", "disk"])
@pytest.mark.parametrize("runs_before", [False, True])
def test_offloaded_8_bit_weights_leave_memory(tmp_path, original, way, runs_before):
    model = load_and_quantize_model(original, BnbQuantizationConfig(load_in_8bit=True))
    with torch.no_grad():
        wanted = copy.deepcopy(model)(TOKENS)
        if runs_before:
            model(TOKENS)
        model = cpu_offload(model, "cpu") if way == "cpu" else disk_offload(model, tmp_path, "cpu")
        assert not int8_weight_tensors(model)
        for _ in range(3):
            assert torch.equal(model(TOKENS), wanted)
            assert not int8_weight_tensors(model)
    assert {"up.weight", "up.SCB", "down.SCB"} <= model.state_dict().keys()
    remove_hook_from_submodules(model)
    with torch.no_grad():
        assert torch.equal(model(TOKENS), wanted)


@needs_bitsandbytes
def test_offloaded_4_bit_weights_give_what_the_resident_ones_give(tmp_path, original):
    config = BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_compute_dtype="fp32")
    model = load_and_quantize_model(original, config)
    with torch.no_grad():
        wanted = model(TOKENS)
        cpu_offload(model, "cpu")
        assert model.up.weight.is_meta
        for _ in range(2):
            assert torch.equal(model(TOKENS), wanted)
