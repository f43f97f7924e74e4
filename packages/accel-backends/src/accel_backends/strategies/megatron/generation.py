"""Continue rows of tokens with a GPT of megatron-core, whose ranks share layers and stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from accel_backends.strategies.megatron.packages import core
from accel_backends.strategies.megatron.train_steps import whole_logits
from accel_state.errors import ConfigError


@torch.no_grad()
def generate(
    engine: Any,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    max_length: int | None = None,
    max_new_tokens: int | None = None,
    num_beams: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    length_penalty: float | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Return rows with the tokens that follow, filled up with the end token. All ranks of a copy of the model together.

    Each new token is computed from all that come before; keys and values are not kept.

    Args:
        engine: The `MegatronEngine`.
        inputs: Tokens, ``(rows, tokens)``.
        attention_mask: 1 for tokens, 0 for padding behind them, of the same shape.
        max_length: Tokens of a row, with those given.
        max_new_tokens: Tokens to add; 64 where neither is given.
        num_beams: Continuations that are followed at a time, of one row.
        temperature: Divides scores before a token is drawn.
        top_k: Draw from so many tokens with the highest scores; without ``top_k`` and ``top_p`` the highest is taken.
        top_p: Draw from the most probable tokens that make up this probability together.
        length_penalty: Power of the length that the score of a continuation is divided by.
        **kwargs: ``top_p_decay`` multiplies ``top_p`` after each token, down to ``top_p_bound``; ``add_BOS`` begins
            rows with the end token.

    Raises:
        ConfigError: If the model is no GPT, the plugin does not allow it, or an argument is unknown.
    """
    arguments = engine.plugin.megatron_lm_default_args
    _check(engine, inputs, num_beams, kwargs)
    end = arguments.get("eos_token_id")
    inputs = inputs.to(engine.accelerator.device)
    counts = torch.full((len(inputs),), inputs.shape[1], device=inputs.device)
    if attention_mask is not None:
        counts = attention_mask.to(inputs.device).sum(1)
    if kwargs.get("add_BOS"):
        inputs = torch.cat([torch.full_like(inputs[:, :1], end), inputs], 1)
        counts = counts + 1
    length = max_length or inputs.shape[1] + (64 if max_new_tokens is None else max_new_tokens)
    if length > arguments["max_position_embeddings"]:
        raise ConfigError(
            f"Rows of {length} tokens are longer than the model's {arguments['max_position_embeddings']}. Lower "
            "`max_new_tokens`."
        )
    was_training = engine.training
    engine.eval()
    try:
        if num_beams is not None and num_beams > 1:
            return _beams(engine, inputs[:, : int(counts[0])], length, num_beams, length_penalty or 1.0, end)
        draw = {"temperature": temperature or 1.0, "top_k": top_k, "top_p": top_p}
        return _rows(engine, inputs, counts, length, draw, end, **_decay(kwargs))
    finally:
        engine.train(was_training)


def _rows(
    engine: Any,
    inputs: torch.Tensor,
    counts: torch.Tensor,
    length: int,
    draw: dict[str, Any],
    end: int | None,
    *,
    decay: float,
    bound: float,
) -> torch.Tensor:
    tokens = torch.nn.functional.pad(inputs, (0, length - inputs.shape[1]), value=end or 0)
    is_done = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for place in range(int(counts.min()), length):
        scores = _next_scores(engine, tokens[:, :place])
        chosen = _shared(engine, None if scores is None else _drawn(scores, **draw), tokens[:, 0])
        is_free = place >= counts
        tokens[:, place] = torch.where(is_free & ~is_done, chosen, tokens[:, place])
        if end is not None:
            is_done |= is_free & (tokens[:, place] == end)
        if bool(is_done.all()):
            return tokens[:, : place + 1]
        if draw["top_p"]:
            draw["top_p"] = max(draw["top_p"] * decay, bound)
    return tokens


def _beams(
    engine: Any, row: torch.Tensor, length: int, number: int, penalty: float, end: int | None
) -> torch.Tensor:
    beams, totals = row, torch.zeros(1, device=row.device)
    best, best_score = row, float("-inf")
    num_given = row.shape[1]
    for place in range(num_given, length):
        scores = _next_scores(engine, beams)
        candidates = torch.zeros(2 * number, 3, dtype=torch.float64, device=row.device)
        if scores is not None:
            sums = (totals[:, None] + scores.log_softmax(-1)).double()
            values, places = sums.flatten().topk(min(2 * number, sums.numel()))
            size = scores.shape[1]
            candidates = torch.stack([values, (places // size).double(), (places % size).double()], 1)
        candidates = _shared(engine, candidates if scores is not None else None, candidates)
        kept: list[tuple[float, int, int]] = []
        for value, beam, token in candidates.tolist():
            if end is not None and int(token) == end:
                score = value / (place + 1 - num_given) ** penalty
                if score > best_score:
                    best_score, best = score, torch.cat([beams[int(beam)], row.new_tensor([end])])[None]
            elif len(kept) < number:
                kept.append((value, int(beam), int(token)))
        beams = torch.stack([torch.cat([beams[beam], row.new_tensor([token])]) for _, beam, token in kept])
        totals = torch.tensor([value for value, _, _ in kept], device=row.device)
        if best_score > float(totals.max()) / (place + 1 - num_given) ** penalty:
            return best
    score = float(totals.max()) / max(beams.shape[1] - num_given, 1) ** penalty
    return best if best_score > score else beams[int(totals.argmax())][None]


def _next_scores(engine: Any, tokens: torch.Tensor) -> torch.Tensor | None:
    """Return the scores of the token behind each row, ``(rows, vocabulary)``, on the last stage; None on others."""

    def forward_step(data_iterator: Iterator[Any], model: Any) -> tuple[Any, Any]:
        rows = next(data_iterator)["tokens"]
        positions = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
        output = model(rows, positions, None)
        return output, lambda logits, non_loss_data=True: whole_logits(logits[:, -1])

    found = engine.run_schedule(forward_step, [{"tokens": tokens}], forward_only=True, collects_outputs=True)
    size = engine.plugin.megatron_lm_default_args["orig_vocab_size"]
    return found[0][:, :size].float() if found else None


def _shared(engine: Any, chosen: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Return what the last stage has chosen, on all ranks of this copy of the model."""
    state = core("parallel_state")
    group = state.get_model_parallel_group()
    result = torch.empty_like(like) if chosen is None else chosen.contiguous()
    dist.broadcast(result, src=dist.get_process_group_ranks(group)[-1], group=group)
    return result


def _drawn(
    scores: torch.Tensor, *, temperature: float, top_k: int | None, top_p: float | None
) -> torch.Tensor:
    if not top_k and not top_p:
        return scores.argmax(-1)
    scores = scores / temperature
    if top_k:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], float("-inf"))
    if top_p:
        ordered, places = scores.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        scores = scores.scatter(1, places, ordered.masked_fill(before > top_p, float("-inf")))
    return torch.multinomial(scores.softmax(-1), 1)[:, 0]


def _decay(kwargs: dict[str, Any]) -> dict[str, float]:
    return {"decay": kwargs.get("top_p_decay", 1.0), "bound": kwargs.get("top_p_bound", 0.0)}


def _check(engine: Any, inputs: torch.Tensor, num_beams: int | None, kwargs: dict[str, Any]) -> None:
    unknown = sorted(set(kwargs) - {"add_BOS", "top_p_bound", "top_p_decay"})
    if unknown:
        raise ConfigError(
            f"`megatron_generate` knows no argument `{unknown[0]}`. Known: max_length, max_new_tokens, num_beams, "
            "temperature, top_k, top_p, length_penalty, top_p_decay, top_p_bound, add_BOS."
        )
    config = engine.get_module_config()
    if engine.plugin.megatron_lm_default_args["model_type_name"] != "gpt":
        raise ConfigError(
            "`megatron_generate` continues texts with a GPT, and this model is none. Prepare a GPT."
        )
    for name, is_on in (
        ("sequence_parallelism", config.sequence_parallel),
        ("context_parallel_size", config.context_parallel_size > 1),
        ("num_layers_per_virtual_pipeline_stage", config.virtual_pipeline_model_parallel_size),
    ):
        if is_on:
            raise ConfigError(f"`megatron_generate` does not work with `{name}`. Leave it out of the plugin.")
    if num_beams is not None and num_beams > 1 and len(inputs) != 1:
        raise ConfigError(f"`num_beams` follows one row, got {len(inputs)}. Call it for each.")
