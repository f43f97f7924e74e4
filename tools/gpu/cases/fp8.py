"""Four blocks of a Llama-8B in 8 bits by torchao, compiled, next to bf16 and to torchao by hand."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from tools.gpu.llama import (
    EIGHT_B,
    Size,
    compile_plugin,
    fused_adamw,
    make_llama,
    make_step,
    measure_training,
)
from tools.gpu.measuring import Bench, NotHereError, Row, Step, near, ratio


def is_in_block(module: torch.nn.Module, name: str) -> bool:
    """Whether a linear layer is converted."""
    return ".layers." in f".{name}"


def size_of_blocks(bench: Bench) -> Size:
    """Return four blocks with a small vocabulary, so that they are what is measured."""
    return Size.of(bench, {**EIGHT_B, "num_hidden_layers": 4, "vocab_size": 1024})


def prepared_step(bench: Bench, size: Size, library: str, precision: str, handlers: list[Any]) -> Step:
    """Return a step through a library in a precision."""
    model = make_llama(bench, size.config(), torch.float32)
    accelerator = bench.accelerator(
        library,
        mixed_precision=precision,
        kwargs_handlers=handlers,
        dynamo_plugin=compile_plugin(library, bench),
    )
    model, optimizer = accelerator.prepare(model, fused_adamw(model, bench))
    tokens = size.tokens(bench)
    return make_step(lambda: model(input_ids=tokens, labels=tokens).loss, accelerator.backward, [optimizer])


def plain_step(bench: Bench, size: Size, recipe: Any) -> Step:
    """Return a step of torchao by hand."""
    from torchao.float8 import convert_to_float8_training

    model = make_llama(bench, size.config(), torch.float32)
    convert_to_float8_training(model, config=recipe, module_filter_fn=is_in_block)
    optimizer = fused_adamw(model, bench)
    layers = model.model.layers
    for place, layer in enumerate(layers):
        layers[place] = torch.compile(layer, backend=bench.compiler, dynamic=False)
    tokens = size.tokens(bench)

    def forward() -> Any:
        with torch.autocast(bench.device.type, dtype=torch.bfloat16):
            return model(input_ids=tokens, labels=tokens).loss

    return make_step(forward, lambda loss: loss.backward(), [optimizer])


def run(bench: Bench) -> None:
    """Put one row; the bound is bf16."""
    try:
        from torchao.float8 import Float8LinearConfig
    except ImportError as error:
        raise NotHereError(f"torchao cannot be imported: {error}") from error
    recipe: Any = (
        Float8LinearConfig.from_recipe_name("rowwise") if bench.is_cuda else Float8LinearConfig(emulate=True)
    )
    size = size_of_blocks(bench)
    trained = {"plain": measure_training(bench, lambda: plain_step(bench, size, recipe), size)}
    for library in ("accel", "accelerate"):
        kwargs = importlib.import_module(f"{library}.utils").AORecipeKwargs
        handler = kwargs(config=recipe, module_filter_func=is_in_block)
        trained[library] = measure_training(
            bench,
            lambda library=library, handler=handler: prepared_step(bench, size, library, "fp8", [handler]),  # type: ignore[misc]
            size,
        )
    in_bf16 = measure_training(bench, lambda: prepared_step(bench, size, "accel", "bf16", []), size)
    row = Row("fp8 by torchao, four blocks of Llama-8B", "tokens/s", "≥ 1.25 of bf16, ≥ 0.98 of plain")
    row.figures = {name: round(each.tokens_per_s) for name, each in trained.items()}
    gained = ratio(trained["accel"].tokens_per_s, in_bf16.tokens_per_s)
    row.note = f"{gained} of accel's bf16 ({in_bf16.tokens_per_s:.0f})"
    if not near(trained["accel"].losses, trained["plain"].losses, tolerance=0.05):
        row.wrong.append(f"losses {trained['accel'].losses[:3]}, plain {trained['plain'].losses[:3]}")
    if bench.has_goals and gained < 1.25:
        row.wrong.append(f"{gained} of bf16")
    if bench.has_goals and ratio(row.figures["accel"], row.figures["plain"]) < 0.98:
        row.wrong.append(f"{ratio(row.figures['accel'], row.figures['plain'])} of torchao by hand")
    bench.put(row)
