"""Llamas with random weights, as transformers has them, and a training step of each library."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tools.gpu.measuring import Bench, Step, graph_counts

ONE_B = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 18, "num_attention_heads": 16,
    "num_key_value_heads": 8, "vocab_size": 32768,
}  # fmt: skip
EIGHT_B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256,
}  # fmt: skip
PEAK_FLOPS = 989.4e12
"""Of an H100 or H200 in bf16."""


@dataclass(frozen=True)
class Size:
    """A model and its batches; ``TINY`` replaces the shape of a small run."""

    shape: dict[str, int]
    batch: int
    length: int

    @classmethod
    def of(cls, bench: Bench, shape: dict[str, int], *, batch: int = 4, length: int = 4096) -> Size:
        return cls(TINY, 2, 32) if bench.is_small else cls(shape, batch, length)

    def config(self, **more: Any) -> Any:
        """Return the configuration of the model."""
        from transformers import LlamaConfig

        options = {"use_cache": False, "attn_implementation": "sdpa", **more}
        return LlamaConfig(
            **self.shape, max_position_embeddings=self.length, tie_word_embeddings=False, **options
        )

    def tokens(self, bench: Bench) -> torch.Tensor:
        """Return one batch, which every step trains on."""
        generator = torch.Generator().manual_seed(1)
        shape = (self.batch, self.length)
        return torch.randint(self.shape["vocab_size"], shape, generator=generator).to(bench.device)

    def mfu(self, num_parameters: int, tokens_per_s: float) -> float:
        """Return the percentage of the device's bf16 peak; attention is counted whole, recomputation never."""
        attention = 12 * self.shape["num_hidden_layers"] * self.shape["hidden_size"] * self.length
        return round(100 * (6 * num_parameters + attention) * tokens_per_s / PEAK_FLOPS, 1)


def make_llama(bench: Bench, config: Any, dtype: torch.dtype, *, checkpointing: bool = False) -> Any:
    """Return a model in training mode, its weights made on the device."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with bench.device:
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def compile_plugin(library: str, bench: Bench) -> Any:
    """Return the plugin that compiles each block."""
    plugin: Callable[..., Any] = importlib.import_module(f"{library}.utils").TorchDynamoPlugin
    return plugin(backend=bench.compiler, use_regional_compilation=True, dynamic=False)


def fused_adamw(model: torch.nn.Module, bench: Bench, rate: float = 1e-4) -> torch.optim.Optimizer:
    """Return AdamW, fused on a device."""
    return torch.optim.AdamW(model.parameters(), lr=rate, fused=bench.is_cuda)


def make_step(forward: Step, backward: Callable[[torch.Tensor], object], optimizers: list[Any]) -> Step:
    """Return a training step of a forward that gives a loss."""

    def step() -> torch.Tensor:
        loss = forward()
        backward(loss)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step


@dataclass
class Trained:
    """What a measured training came to."""

    tokens_per_s: float
    losses: list[float]
    graphs: int
    breaks: int
    peak_gb: float


def measure_training(bench: Bench, make: Callable[[], Step], size: Size) -> Trained:
    """Build a step, warm it up, and time it alone."""
    bench.clear()
    before = graph_counts()
    step = make()
    num_timed = 8 if bench.is_cuda else 2
    losses = [step() for _ in range(3)]
    _, seconds = bench.clocked(lambda: losses.extend(step() for _ in range(num_timed)))
    counts = graph_counts() - before
    peak = bench.peak_gb()
    values = [loss.item() for loss in losses]
    del step, losses
    bench.clear()
    speed = num_timed * size.batch * size.length / seconds
    return Trained(speed, values, counts["graphs"], counts["breaks"], peak)
