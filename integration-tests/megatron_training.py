"""A GPT-2 trained by Megatron-LM and by plain PyTorch, from the same weights and batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


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
        rank: Which of the TP ranks this is.
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
    """Return rows that count up, each from a number and by its own step."""
    places = torch.arange(num_tokens)
    rows = [(number * 7 + places * (1 + number % 3)) % vocabulary for number in range(num_rows)]
    return [{"input_ids": row, "labels": row} for row in rows]


def train_plain(
    model: Any, rows: list[dict[str, torch.Tensor]], num_rows: int, optimizer: Any, limit: float
) -> list[float]:
    """Return the losses of plain PyTorch over batches of ``num_rows``, with gradients of a norm up to ``limit``."""
    losses = []
    for start in range(0, len(rows), num_rows):
        tokens = torch.stack([row["input_ids"] for row in rows[start : start + num_rows]])
        loss = model.train()(input_ids=tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_megatron(
    accelerator: Any, engine: Any, optimizer: Any, loader: Any, limit: float | None = None
) -> list[float]:
    """Return the losses of an epoch; ``limit`` is the norm to which a script clips gradients."""
    engine.train()
    losses = []
    for batch in loader:
        loss = engine(**batch).loss
        accelerator.backward(loss)
        if limit is not None:
            accelerator.clip_grad_norm_(engine.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def load_gpt2(accelerator: Any, engine: Any, source: Any) -> None:
    """Give a prepared model the weights of the model that it was prepared from."""
    model = accelerator.unwrap_model(engine)
    layout = accelerator.state.layout
    parts = list(model) if isinstance(model, nn.ModuleList) else [model]
    rank = layout.index(accelerator.process_index, "tp")
    copy_gpt2(source, parts, rank=rank, num_ranks=layout.tp)
    if engine.optimizer is not None:
        engine.optimizer.reload_model_params()
