"""Settings of quantization."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from accel_bigmodel.dtypes import as_torch_dtype
from accel_state.enums import CustomDtype
from accel_state.errors import ConfigError

_SHORT = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class BnbQuantizationConfig:
    """How `load_and_quantize_model` quantizes linear layers.

    Args:
        load_in_8bit: Use 8-bit weights (LLM.int8, arXiv 2208.07339).
        llm_int8_threshold: Input features with larger magnitude are multiplied in full precision.
        load_in_4bit: Use 4-bit weights (QLoRA, arXiv 2305.14314).
        bnb_4bit_quant_type: ``"fp4"`` or ``"nf4"``.
        bnb_4bit_use_double_quant: Quantize the scales, too.
        bnb_4bit_compute_dtype: Dtype of products with 4-bit weights: a dtype or ``"fp32"``, ``"fp16"``, ``"bf16"``.
        torch_dtype: Dtype of the other weights. Default: float16 on accelerators, the model's dtypes on the CPU.
        skip_modules: Names of modules that are not quantized. Default: the last one, and modules with tied weights.
        keep_in_fp32_modules: Names of modules that stay in float32.

    Raises:
        ConfigError: If a value has another type, or settings contradict each other.
    """

    load_in_8bit: bool = False
    llm_int8_threshold: float = 6.0
    load_in_4bit: bool = False
    bnb_4bit_quant_type: str = "fp4"
    bnb_4bit_use_double_quant: bool = False
    bnb_4bit_compute_dtype: str | torch.dtype = "fp16"
    torch_dtype: torch.dtype | str | None = None
    skip_modules: list[str] | None = None
    keep_in_fp32_modules: list[str] | None = None
    target_dtype: torch.dtype | CustomDtype = field(init=False)

    def __post_init__(self) -> None:
        for name in ("load_in_8bit", "load_in_4bit", "bnb_4bit_use_double_quant"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"`{name}` must be True or False, not `{getattr(self, name)!r}`.")
        if self.load_in_8bit == self.load_in_4bit:
            raise ConfigError("Exactly one of `load_in_8bit` and `load_in_4bit` must be True.")
        if self.bnb_4bit_quant_type not in ("fp4", "nf4"):
            raise ConfigError(
                f"`bnb_4bit_quant_type` must be `fp4` or `nf4`, not `{self.bnb_4bit_quant_type}`."
            )
        given = self.bnb_4bit_compute_dtype
        self.bnb_4bit_compute_dtype = as_torch_dtype(
            _SHORT.get(given, given) if isinstance(given, str) else given
        )
        if self.torch_dtype is not None:
            self.torch_dtype = as_torch_dtype(self.torch_dtype)
        for name in ("skip_modules", "keep_in_fp32_modules"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), list):
                raise ConfigError(f"`{name}` must be a list of module names.")
        self.keep_in_fp32_modules = self.keep_in_fp32_modules or []
        self.target_dtype = CustomDtype.INT4 if self.load_in_4bit else torch.int8
