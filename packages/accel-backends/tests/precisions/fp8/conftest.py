"""Stand-ins for libraries that cannot be imported without a GPU: their signatures, and nothing beyond them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from accel_state import PartialState
from accel_state.devices import find_vendor
from accel_state.devices.cpu import CpuBackend

VERSIONS = {"transformer-engine": "2.9.0"}


class OneGPU(CpuBackend):
    """A device that calls itself ``cuda`` and computes on the CPU."""

    name = "cuda"


@pytest.fixture
def gpu(fresh_state):
    """Return the device; what is logged needs to know which process this is."""
    PartialState(cpu=True)
    return OneGPU(find_vendor("cpu"))


def install(monkeypatch, folder, distribution):
    """Make metadata of a package be found, as if it were installed."""
    info = folder / f"{distribution.replace('-', '_')}-{VERSIONS[distribution]}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {VERSIONS[distribution]}\n"
    )
    monkeypatch.syspath_prepend(str(folder))


def module(monkeypatch, name, **content):
    """Make ``import name`` give a module with this content, which has nothing else."""
    made = ModuleType(name)
    made.__spec__ = SimpleNamespace(name=name, loader=None, origin=None, submodule_search_locations=[])
    made.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, made)
    return made


class Format(Enum):
    """https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/common.html"""

    E4M3 = "E4M3"
    E5M2 = "E5M2"
    HYBRID = "HYBRID"


@dataclass
class DelayedScaling:
    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: str = "max"
    scaling_factor_compute_algo: object = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None


@dataclass
class Float8CurrentScaling:
    use_power_2_scales: bool = False
    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None


@dataclass
class Float8BlockScaling:
    use_f32_scales: bool = False
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    backward_override: str | None = None


@dataclass
class MXFP8BlockScaling:
    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None


class TransformerEngine:
    """What `transformer_engine.pytorch` 2.9 has of what is used here; it notes each autocast that is entered."""

    def __init__(self) -> None:
        stand_in = self
        self.entered: list[tuple[bool, object]] = []
        self.depth = 0
        self.unavailable: dict[str, str] = {}

        class Layer(nn.Module):
            """Keeps an extra state, as the library's layers do, and computes in fp8 inside `autocast` only."""

            def get_extra_state(self):
                return torch.zeros(4, dtype=torch.uint8)

            def set_extra_state(self, state):
                raise AssertionError("a pickle in a checkpoint must not be loaded")

        class Linear(Layer):
            def __init__(
                self,
                in_features,
                out_features,
                sequence_parallel=False,
                fuse_wgrad_accumulation=False,
                tp_group=None,
                tp_size=1,
                get_rng_state_tracker=None,
                init_method=None,
                bias=True,
                return_bias=False,
                params_dtype=None,
                parallel_mode=None,
                parameters_split=None,
                device="cuda",
            ):
                super().__init__()
                self.in_features, self.out_features = in_features, out_features
                kind = {"device": device, "dtype": params_dtype}
                self.weight = nn.Parameter(torch.empty(out_features, in_features, **kind))
                if bias:
                    self.bias = nn.Parameter(torch.empty(out_features, **kind))
                else:
                    self.bias = torch.Tensor().to(**kind)  # as the library does

            def forward(self, inp, is_first_microbatch=None, fp8_output=False):
                assert inp.shape[-1] == self.in_features
                weight = self.weight
                if stand_in.depth:
                    weight = weight + (weight.to(torch.float8_e4m3fn).to(weight.dtype) - weight).detach()
                return F.linear(
                    inp, weight.to(inp.dtype), self.bias.to(inp.dtype) if self.bias.numel() else None
                )

        class LayerNorm(Layer):
            def __init__(
                self,
                normalized_shape=None,
                eps=1e-5,
                sequence_parallel=None,
                params_dtype=None,
                zero_centered_gamma=False,
                hidden_size=None,
                *,
                device="cuda",
                dtype=None,
            ):
                super().__init__()
                self.eps = eps
                self.weight = nn.Parameter(torch.empty(normalized_shape, device=device, dtype=dtype))
                self.bias = nn.Parameter(torch.empty(normalized_shape, device=device, dtype=dtype))

            def forward(self, inp):
                return F.layer_norm(inp, self.weight.shape, self.weight, self.bias, self.eps)

        class autocast:
            def __init__(
                self, enabled=True, calibrating=False, recipe=None, amax_reduction_group=None, _graph=False
            ):
                self.enabled, self.recipe = enabled, recipe

            def __enter__(self):
                stand_in.entered.append((self.enabled, self.recipe))
                stand_in.depth += self.enabled

            def __exit__(self, *error):
                stand_in.depth -= self.enabled

        def check(name):
            def is_available(return_reason=False):
                reason = stand_in.unavailable.get(name, "")
                return (not reason, reason) if return_reason else not reason

            return is_available

        self.content = {
            "Linear": Linear,
            "LayerNorm": LayerNorm,
            "LayerNormLinear": type("LayerNormLinear", (Layer,), {}),
            "LayerNormMLP": type("LayerNormMLP", (Layer,), {}),
            "TransformerLayer": type("TransformerLayer", (nn.Module,), {}),
            "autocast": autocast,
            **{
                name: check(name)
                for name in ("is_fp8_available", "is_mxfp8_available", "is_fp8_block_scaling_available")
            },
        }


@pytest.fixture
def te(monkeypatch, tmp_path):
    """Return the stand-in, installed: its layers are ``te.content["Linear"]`` and so on."""
    stand_in = TransformerEngine()
    install(monkeypatch, tmp_path, "transformer-engine")
    module(monkeypatch, "transformer_engine")
    module(monkeypatch, "transformer_engine.common")
    module(
        monkeypatch,
        "transformer_engine.common.recipe",
        Format=Format,
        DelayedScaling=DelayedScaling,
        Float8CurrentScaling=Float8CurrentScaling,
        Float8BlockScaling=Float8BlockScaling,
        MXFP8BlockScaling=MXFP8BlockScaling,
    )
    module(monkeypatch, "transformer_engine.pytorch", **stand_in.content)
    return stand_in
