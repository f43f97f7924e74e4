"""Train 50 steps of a GPT-2 by Megatron-LM and by plain PyTorch in one process, and compare losses and speed.

    accel launch --num_processes 8 --use_megatron_lm --megatron_lm_tp_degree 2 --megatron_lm_pp_degree 2 \\
        --megatron_lm_num_micro_batches 4 --megatron_lm_use_distributed_optimizer true -m tools.gpu.megatron
    accel launch --num_processes 1 --use_megatron_lm -m tools.gpu.megatron --generate

Every rank computes the plain model too, from the same weights and batches. It fails where the losses lie further apart
than `--distance`, or where a checkpoint does not go on with the same losses.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

NUM_STEPS = 50
NUM_WARM = 10


def gpt2(*, width: int, num_layers: int, num_heads: int, num_tokens: int, vocabulary: int) -> nn.Module:
    """Return a GPT-2 of transformers with random weights, and without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=width,
        n_layer=num_layers,
        n_head=num_heads,
        n_positions=num_tokens,
        vocab_size=vocabulary,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


@torch.no_grad()
def copy_gpt2(source: Any, parts: list[Any], *, rank: int, num_ranks: int) -> None:
    """Copy the weights of a GPT-2 of transformers into parts of a `GPTModel` of megatron-core's own layers.

    Args:
        source: The model of transformers.
        parts: This rank's parts of the model.
        rank: Which of the ranks that share layers this is.
        num_ranks: How many they are.
    """
    for part in parts:
        values: dict[str, torch.Tensor] = {}
        layers = {
            f"decoder.layers.{place}.": one.layer_number - 1 for place, one in enumerate(part.decoder.layers)
        }
        for prefix, number in layers.items():
            values |= {prefix + name: value for name, value in _layer(source.transformer.h[number]).items()}
        norm = source.transformer.ln_f
        values["decoder.final_layernorm.weight"] = norm.weight
        values["decoder.final_layernorm.bias"] = norm.bias
        values["embedding.word_embeddings.weight"] = source.transformer.wte.weight
        values["embedding.position_embeddings.weight"] = source.transformer.wpe.weight
        values["output_layer.weight"] = source.transformer.wte.weight
        for name, parameter in part.named_parameters():
            value = values[name]
            for dim, (whole, own) in enumerate(zip(value.shape, parameter.shape, strict=True)):
                if whole != own:
                    value = value.chunk(num_ranks, dim)[rank]
            parameter.copy_(value)


def _layer(block: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a layer by megatron-core's names; heads have their query, key and value side by side."""
    attention, mlp = block.attn, block.mlp

    def by_head(one: torch.Tensor) -> torch.Tensor:
        return one.reshape(3, attention.num_heads, -1, *one.shape[1:]).transpose(0, 1).flatten(0, 2)

    return {
        "input_layernorm.weight": block.ln_1.weight,
        "input_layernorm.bias": block.ln_1.bias,
        "self_attention.linear_qkv.weight": by_head(attention.c_attn.weight.T),
        "self_attention.linear_qkv.bias": by_head(attention.c_attn.bias),
        "self_attention.linear_proj.weight": attention.c_proj.weight.T,
        "self_attention.linear_proj.bias": attention.c_proj.bias,
        "pre_mlp_layernorm.weight": block.ln_2.weight,
        "pre_mlp_layernorm.bias": block.ln_2.bias,
        "mlp.linear_fc1.weight": mlp.c_fc.weight.T,
        "mlp.linear_fc1.bias": mlp.c_fc.bias,
        "mlp.linear_fc2.weight": mlp.c_proj.weight.T,
        "mlp.linear_fc2.bias": mlp.c_proj.bias,
    }


def batches(num_rows: int, *, num_tokens: int, vocabulary: int) -> list[dict[str, torch.Tensor]]:
    """Return rows that count up, each from a number and by a step of its own."""
    places = torch.arange(num_tokens)
    rows = [(number * 7 + places * (1 + number % 3)) % vocabulary for number in range(num_rows)]
    return [{"input_ids": row, "labels": row} for row in rows]


def train_plain(
    model: Any,
    rows: list[dict[str, torch.Tensor]],
    num_rows: int,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
) -> tuple[list[float], float]:
    """Return the losses of plain PyTorch over batches of ``num_rows``, and tokens per second."""
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    losses, began = [], time.perf_counter()
    steps = range(0, len(rows), num_rows)
    for step, start in enumerate(steps):
        if step == min(NUM_WARM, len(steps) - 1):
            began = time.perf_counter()
        tokens = torch.stack([row["input_ids"] for row in rows[start : start + num_rows]]).to(device)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    counted = max(1, len(steps) - NUM_WARM) * num_rows * len(rows[0]["input_ids"])
    return losses, counted / (time.perf_counter() - began)


def train_megatron(accelerator: Any, engine: Any, optimizer: Any, loader: Any) -> tuple[list[float], float]:
    """Return the losses of an epoch, and tokens per second of all ranks."""
    losses, num_tokens, began = [], 0, time.perf_counter()
    engine.train()
    for step, batch in enumerate(loader):
        if step == min(NUM_WARM, len(loader) - 1):
            began, num_tokens = time.perf_counter(), 0
        loss = engine(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        num_tokens += batch["input_ids"].numel() * accelerator.state.megatron_lm_plugin.num_data_ranks
    return losses, num_tokens / (time.perf_counter() - began)


def main(arguments: list[str] | None = None) -> int:
    """Run all and print a table; return 1 where something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mixed_precision", choices=["no", "bf16"], default="bf16")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--num_layers", type=int, default=8)
    parser.add_argument("--num_tokens", type=int, default=1024)
    parser.add_argument("--batch_size", type=int, default=4, help="rows of a micro-batch")
    parser.add_argument("--generate", action="store_true", help="continue the first row")
    parser.add_argument(
        "--distance", type=float, default=0.05, help="between the mean losses of the last 10 steps"
    )
    args = parser.parse_args(arguments)

    from accel import Accelerator
    from accel_ops import set_seed

    accelerator = Accelerator(mixed_precision=args.mixed_precision)
    plugin = accelerator.state.megatron_lm_plugin
    plugin.other_megatron_args["make_vocab_size_divisible_by"] = 1
    set_seed(0)
    shape = {"num_tokens": args.num_tokens, "vocabulary": 4096}
    source = gpt2(width=args.width, num_layers=args.num_layers, num_heads=args.width // 64, **shape)
    optimizer = torch.optim.AdamW(source.parameters(), lr=1e-3, weight_decay=0.0)
    num_rows = args.batch_size * plugin.num_micro_batches * plugin.num_data_ranks
    rows: Any = batches(NUM_STEPS * num_rows, **shape)
    loader: Any = DataLoader(rows, batch_size=args.batch_size)
    prepared: Any = accelerator.prepare(source, optimizer, loader)
    engine, optimizer, loader = prepared
    load_gpt2(accelerator, engine, source)
    found, speed = train_megatron(accelerator, engine, optimizer, loader)
    dtype = torch.bfloat16 if args.mixed_precision == "bf16" else None
    expected, plain_speed = train_plain(source, rows, num_rows, device=accelerator.device, dtype=dtype)
    accelerator.print(f"{'':10}{'first loss':>12}{'last 10':>10}{'tokens/s':>12}")
    for name, losses, figure in (("plain", expected, plain_speed), ("megatron", found, speed)):
        accelerator.print(f"{name:10}{losses[0]:12.4f}{sum(losses[-10:]) / 10:10.4f}{figure:12.0f}")
    distance = abs(sum(found[-10:]) - sum(expected[-10:])) / 10
    accelerator.print(f"distance {distance:.4f}, at most {args.distance}")
    failed = distance > args.distance
    with tempfile.TemporaryDirectory() as folder:
        kept = accelerator.save_state(shared_folder(accelerator, folder))
        first, _ = train_megatron(accelerator, engine, optimizer, loader)
        accelerator.load_state(kept)
        again, _ = train_megatron(accelerator, engine, optimizer, loader)
        accelerator.wait_for_everyone()
    gap = max(abs(one - other) for one, other in zip(first, again, strict=True))
    accelerator.print(f"after loading: losses differ by {gap:.2e}")
    failed |= gap > 1e-3
    if args.generate:
        tokens = rows[0]["input_ids"][None, :16].to(accelerator.device)
        made = engine.megatron_generate(tokens, max_new_tokens=16)
        accelerator.print(f"generated {made[0, 16:].tolist()}")
    accelerator.end_training()
    return int(failed)


def load_gpt2(accelerator: Any, engine: Any, source: Any) -> None:
    """Give a prepared model the weights of the model that it was prepared from."""
    model = accelerator.unwrap_model(engine)
    layout = accelerator.state.layout
    parts = list(model) if isinstance(model, nn.ModuleList) else [model]
    rank = layout.index(accelerator.process_index, "tp")
    copy_gpt2(source, parts, rank=rank, num_ranks=layout.tp)
    if engine.optimizer is not None:
        engine.optimizer.reload_model_params()


def shared_folder(accelerator: Any, folder: str) -> str:
    """Return the folder of the main process, on every rank."""
    from accel_ops import broadcast_object_list

    (shared,) = broadcast_object_list([f"{folder}/checkpoint"])
    return str(shared)


if __name__ == "__main__":
    sys.exit(main())
