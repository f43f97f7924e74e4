"""FSDP 2 with activation checkpointing and compiled blocks, next to `fully_shard` by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tools.gpu.llama import ONE_B, Size, compile_plugin, fused_adamw, make_llama, make_step, measure_training
from tools.gpu.measuring import LIBRARIES, Bench, Row, Step, near, ratio


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    from torch.utils.checkpoint import checkpoint

    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


def plain_step(bench: Bench, size: Size, tokens: torch.Tensor) -> Step:
    """Return a step of torch's own parts, put together by hand."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = make_llama(bench, size.config(), torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": init_device_mesh(bench.device.type, (1,)), "mp_policy": policy}
    for layer in model.model.layers:
        forward = _checkpointed(layer.forward)
        layer.forward = torch.compile(forward, backend=bench.compiler, dynamic=False)
        fully_shard(layer, **options)
    fully_shard(model, reshard_after_forward=False, **options)
    optimizer = fused_adamw(model, bench)
    return make_step(
        lambda: model(input_ids=tokens, labels=tokens).loss, lambda loss: loss.backward(), [optimizer]
    )


def prepared_step(bench: Bench, size: Size, tokens: torch.Tensor, library: str) -> Step:
    """Return a step through a library."""
    model = make_llama(bench, size.config(), torch.float32)
    plugin = importlib.import_module(library).FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"], activation_checkpointing=True,
    )  # fmt: skip
    accelerator = bench.accelerator(
        library, mixed_precision="bf16", fsdp_plugin=plugin, dynamo_plugin=compile_plugin(library, bench)
    )
    model, optimizer = accelerator.prepare(model, fused_adamw(model, bench))
    return make_step(lambda: model(input_ids=tokens, labels=tokens).loss, accelerator.backward, [optimizer])


def run(bench: Bench) -> None:
    """Put a row of speeds, and one of graphs."""
    dist.init_process_group("cpu:gloo,cuda:nccl" if bench.is_cuda else "gloo")
    size = Size.of(bench, ONE_B)
    tokens = size.tokens(bench)
    row = Row("FSDP 2, 1.3B Llama, checkpointing, blocks compiled", "tokens/s", "≥ 0.99 of plain")
    graphs = Row("the same: graph breaks", "breaks", "none more than plain")
    trained = {}
    for library in LIBRARIES:
        if library == "plain":
            trained[library] = measure_training(bench, lambda: plain_step(bench, size, tokens), size)
        else:
            trained[library] = measure_training(
                bench,
                lambda library=library: prepared_step(bench, size, tokens, library),
                size,  # type: ignore[misc]
            )
        row.figures[library] = round(trained[library].tokens_per_s)
        graphs.figures[library] = trained[library].breaks
    dist.destroy_process_group()
    ours, plain = trained["accel"], trained["plain"]
    row.note = f"peak {ours.peak_gb} GB, plain {plain.peak_gb} GB"
    graphs.note = f"graphs: {ours.graphs}, plain {plain.graphs}"
    if not near(ours.losses, plain.losses, tolerance=2e-2):
        row.wrong.append(f"losses {ours.losses[:3]}, plain {plain.losses[:3]}")
    if ours.breaks > plain.breaks:
        graphs.wrong.append(f"{ours.breaks} graph breaks, plain {plain.breaks}")
    if bench.has_goals and ratio(ours.tokens_per_s, plain.tokens_per_s) < 0.99:
        row.wrong.append(f"{ratio(ours.tokens_per_s, plain.tokens_per_s)} of plain")
    bench.put(row)
    bench.put(graphs)
