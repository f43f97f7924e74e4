"""A Llama of 8B parameters in bf16, blocks compiled: the same parameters trained by hand and through accel in turn."""

from __future__ import annotations

from typing import Any

import torch

from tools.gpu.llama import EIGHT_B, Size, compile_plugin, fused_adamw, make_llama, make_step
from tools.gpu.measuring import Bench, NotHereError, Row, ratio


def run(bench: Bench) -> None:
    """Put a row with full activation checkpointing, and one without it for as many layers as memory has room for."""
    if bench.has_goals and torch.cuda.mem_get_info()[0] < 100e9:
        raise NotHereError("needs 100 GB of free GPU memory")
    size = Size.of(bench, EIGHT_B)
    tokens = size.tokens(bench)
    model = make_llama(bench, size.config(), torch.bfloat16, checkpointing=True)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = fused_adamw(model, bench, 1e-5)
    layers = model.model.layers
    compiled = torch.nn.ModuleList(
        torch.compile(layer, backend=bench.compiler, dynamic=False) for layer in layers
    )
    accelerator = bench.accelerator("accel", dynamo_plugin=compile_plugin("accel", bench))
    prepared, stepping = accelerator.prepare(model, optimizer)

    def plain_forward() -> Any:
        model.model.layers = compiled
        try:
            return model(input_ids=tokens, labels=tokens).loss
        finally:
            model.model.layers = layers

    steps = {
        "plain": make_step(plain_forward, lambda loss: loss.backward(), [optimizer]),
        "accel": make_step(
            lambda: prepared(input_ids=tokens, labels=tokens).loss, accelerator.backward, [stepping]
        ),
    }
    for name in ("all layers checkpointed", "as few layers checkpointed as fit"):
        if name != "all layers checkpointed":
            num_kept = _num_kept(bench, size)
            if num_kept == 0:
                break
            for layer in layers[len(layers) - num_kept :]:
                layer.gradient_checkpointing = False
            name += f" ({len(layers) - num_kept} of {len(layers)})"
        for step in steps.values():
            for _ in range(2):
                step()
        seconds = bench.turns(steps, num_steps=1, num_rounds=5 if bench.is_cuda else 1)
        row = Row(f"8B Llama in bf16, {name}", "tokens/s", "≥ 0.99 of plain")
        speed = {library: size.batch * size.length / each for library, each in seconds.items()}
        row.figures = {library: round(each) for library, each in speed.items()}
        row.note = f"MFU {size.mfu(num_parameters, speed['accel'])}%, peak {bench.peak_gb()} GB"
        if bench.has_goals and ratio(speed["accel"], speed["plain"]) < 0.99:
            row.wrong.append(f"{ratio(speed['accel'], speed['plain'])} of plain")
        bench.put(row)


def _num_kept(bench: Bench, size: Size) -> int:
    """Return for how many layers there is room to keep activations, about 160 kB a token at this width."""
    if not bench.has_goals:
        return 2
    room = 0.88 * torch.cuda.get_device_properties(0).total_memory - bench.peak_gb() * 1e9
    return max(0, min(size.shape["num_hidden_layers"], int(room / (160e3 * size.batch * size.length))))
