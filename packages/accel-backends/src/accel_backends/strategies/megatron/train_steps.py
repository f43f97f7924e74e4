"""What one micro-batch goes through: from the batch to the inputs of the model, from its output to the loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from accel_backends.strategies.megatron.data_ranks import average_over_data_ranks, sum_over_sequence_ranks
from accel_backends.strategies.megatron.packages import core
from accel_state.accelerator_state import AcceleratorState
from accel_state.errors import ConfigError

IGNORED = -100
"""A label that counts in no loss, as in `torch.nn.functional.cross_entropy`."""


class StepOutput(NamedTuple):
    """What a model returns: the loss, averaged over the data ranks, and on the last stage logits, if asked for."""

    loss: torch.Tensor
    logits: torch.Tensor | None = None

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, key) if isinstance(key, str) else tuple.__getitem__(self, key)


class AbstractTrainStep(ABC):
    """A train step; a subclass is the plugin's ``custom_train_step_class``.

    A subclass sets what `get_batch_func`, `get_loss_func` and `get_forward_step_func` return as ``get_batch``,
    ``loss_func`` and ``forward_step``.

    Args:
        name: What it is called in messages.
    """

    get_batch: Callable[[Iterator[Any]], Any]
    loss_func: Callable[..., Any]
    forward_step: Callable[..., Any]

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def get_batch_func(self, accelerator: Any, megatron_dataset_flag: bool) -> Callable[[Iterator[Any]], Any]:
        """Return a function from an iterator over micro-batches to what the forward step needs of the next."""

    @abstractmethod
    def get_forward_step_func(self) -> Callable[..., Any]:
        """Return a function of such an iterator and a part of the model.

        It returns the output of that part, and a function from this output to the loss and a dict of losses to
        report, the names of which end in ``loss``.
        """

    @abstractmethod
    def get_loss_func(self, accelerator: Any) -> Callable[..., Any]:
        """Return the loss function, whose last argument is the output of the model."""


class GPTTrainStep(AbstractTrainStep):
    """The train step of a decoder.

    Args:
        accelerator: What an `Accelerator` shows of the run: ``state`` and what that shows.
        args: The arguments of the model.
    """

    def __init__(self, accelerator: Any, args: Any) -> None:
        super().__init__("GPTTrainStep")
        plugin = accelerator.state.megatron_lm_plugin
        self._returns_logits = plugin.return_logits
        self.get_batch = plugin.custom_get_batch_function or self.get_batch_func(
            accelerator, plugin.megatron_dataset_flag
        )
        self.loss_func = plugin.custom_loss_function or self.get_loss_func(accelerator)
        self.forward_step = self.get_forward_step_func()

    def get_batch_func(self, accelerator: Any, megatron_dataset_flag: bool) -> Callable[[Iterator[Any]], Any]:
        """Return a function that gives tokens, labels of the next tokens, their weights, no mask, and positions."""
        make = dataset_batch if megatron_dataset_flag else decoder_batch
        return lambda data_iterator: make(next(data_iterator))

    def get_loss_func(self, accelerator: Any) -> Callable[..., Any]:
        """Return a function of the weights and the losses of tokens."""
        return mean_of_tokens

    def get_forward_step_func(self) -> Callable[..., Any]:
        """Return the forward step."""

        def forward_step(data_iterator: Iterator[Any], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
            tokens, labels, loss_mask, attention_mask, position_ids = self.get_batch(data_iterator)
            if not self._returns_logits or not core("utils").get_attr_wrapped_model(model, "post_process"):
                output = model(tokens, position_ids, attention_mask, labels=labels)
                return output, partial(self.loss_func, loss_mask)
            logits = model(tokens, position_ids, attention_mask)
            losses = token_losses(logits, labels)
            return losses, partial(_with_logits, self.loss_func, loss_mask, whole_logits(logits))

        return forward_step


class BertTrainStep(AbstractTrainStep):
    """The train step of an encoder that predicts its masked tokens.

    Args:
        accelerator: As of `GPTTrainStep`.
        args: The arguments of the model: ``pretraining_flag``, ``bert_binary_head``, ``num_labels``.
    """

    def __init__(self, accelerator: Any, args: Any) -> None:
        super().__init__("BertTrainStep")
        plugin = accelerator.state.megatron_lm_plugin
        is_pretraining = args.pretraining_flag
        self.get_batch = plugin.custom_get_batch_function or self.get_batch_func(
            accelerator, plugin.megatron_dataset_flag
        )
        self.loss_func = plugin.custom_loss_function or self.get_loss_func(
            accelerator, is_pretraining, getattr(args, "num_labels", 0)
        )
        self.forward_step = self.get_forward_step_func(is_pretraining, args.bert_binary_head)

    def get_batch_func(self, accelerator: Any, megatron_dataset_flag: bool) -> Callable[[Iterator[Any]], Any]:
        """Return a function that gives tokens, their types, labels of sentences and tokens, weights, and a mask."""
        if megatron_dataset_flag:
            raise ConfigError(
                "`megatron_dataset_flag` makes data sets for GPT. Set `custom_get_batch_function` and "
                "`custom_megatron_datasets_provider_function` of the MegatronLMPlugin for a BERT."
            )
        return lambda data_iterator: encoder_batch(next(data_iterator))

    def get_loss_func(  # type: ignore[override]
        self, accelerator: Any, pretraining_flag: bool, num_labels: int
    ) -> Callable[..., Any]:
        """Return a function of the weights, the labels of sentences, and the output."""
        return encoder_loss

    def get_forward_step_func(  # type: ignore[override]
        self, pretraining_flag: bool, bert_binary_head: bool
    ) -> Callable[..., Any]:
        """Return the forward step."""

        def forward_step(data_iterator: Iterator[Any], model: Any) -> tuple[Any, Callable[..., Any]]:
            tokens, types, sentence_order, loss_mask, labels, padding_mask = self.get_batch(data_iterator)
            if not bert_binary_head:
                sentence_order = None
            output = model(tokens, padding_mask, tokentype_ids=types, lm_labels=labels)
            return output, partial(self.loss_func, loss_mask, sentence_order)

        return forward_step


class T5TrainStep(AbstractTrainStep):
    """The train step of an encoder with a decoder.

    Args:
        accelerator: As of `GPTTrainStep`.
        args: The arguments of the model: ``decoder_start_token_id``.
    """

    def __init__(self, accelerator: Any, args: Any) -> None:
        super().__init__("T5TrainStep")
        plugin = accelerator.state.megatron_lm_plugin
        self._first_token = args.decoder_start_token_id
        self.get_batch = plugin.custom_get_batch_function or self.get_batch_func(
            accelerator, plugin.megatron_dataset_flag
        )
        self.loss_func = plugin.custom_loss_function or self.get_loss_func(accelerator)
        self.forward_step = self.get_forward_step_func()

    @staticmethod
    def attn_mask_postprocess(attention_mask: torch.Tensor) -> torch.Tensor:
        """Return ``(rows, tokens, tokens)``, True where either token is padding."""
        is_token = attention_mask.bool()
        return ~(is_token[:, :, None] & is_token[:, None, :])

    @staticmethod
    def get_decoder_mask(seq_length: int, device: torch.device) -> torch.Tensor:
        """Return ``(1, seq_length, seq_length)``, True where a token comes later."""
        return torch.ones(1, seq_length, seq_length, dtype=torch.bool, device=device).triu(1)

    @staticmethod
    def get_enc_dec_mask(
        attention_mask: torch.Tensor, dec_seq_length: int, device: torch.device
    ) -> torch.Tensor:
        """Return ``(rows, dec_seq_length, tokens)``, True where the encoder's token is padding."""
        return ~attention_mask.bool().to(device)[:, None, :].expand(-1, dec_seq_length, -1)

    def get_batch_func(self, accelerator: Any, megatron_dataset_flag: bool) -> Callable[[Iterator[Any]], Any]:
        """Return a function that gives tokens of encoder and decoder, weights, labels, and three masks."""
        if megatron_dataset_flag:
            raise ConfigError(
                "`megatron_dataset_flag` makes data sets for GPT. Set `custom_get_batch_function` and "
                "`custom_megatron_datasets_provider_function` of the MegatronLMPlugin for a T5."
            )
        return lambda data_iterator: pair_batch(next(data_iterator), first_token=self._first_token)

    def get_loss_func(self, accelerator: Any) -> Callable[..., Any]:
        """Return a function of the weights and the losses of tokens."""
        return mean_of_tokens

    def get_forward_step_func(self) -> Callable[..., Any]:
        """Return the forward step."""

        def forward_step(data_iterator: Iterator[Any], model: Any) -> tuple[Any, Callable[..., Any]]:
            tokens, decoder_tokens, loss_mask, labels, own_mask, decoder_mask, cross_mask = self.get_batch(
                data_iterator
            )
            output = model(tokens, decoder_tokens, own_mask, decoder_mask, cross_mask, lm_labels=labels)
            return output, partial(self.loss_func, loss_mask)

        return forward_step


TRAIN_STEPS: Mapping[str, type[AbstractTrainStep]] = {
    "gpt": GPTTrainStep,
    "bert": BertTrainStep,
    "t5": T5TrainStep,
}
"""The train step of each kind of model, by ``model_type_name``."""


def decoder_batch(batch: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """Return what a decoder takes, of a batch of transformers: ``(rows, tokens)`` each.

    Labels are those of transformers, which the model shifts, or ``shift_labels``.

    Raises:
        ConfigError: If a key is missing, or rows are padded before their tokens, which causal masks do not hide.
    """
    tokens = _of(batch, "input_ids")
    labels = batch.get("shift_labels")
    if labels is None:
        labels = torch.roll(_of(batch, "labels"), -1, dims=1)
        labels[:, -1] = IGNORED
    mask = batch.get("attention_mask")
    if mask is not None and bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise ConfigError(
            "`attention_mask` hides tokens before others, but a GPT of Megatron-LM sees all that come before. Pad on "
            'the right: `tokenizer.padding_side = "right"`.'
        )
    positions = batch.get("position_ids")
    if positions is None:
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    counts = (labels != IGNORED).float()
    return tokens, labels.clamp(min=0), counts, None, positions


def dataset_batch(batch: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """Return what a decoder takes, of a batch of Megatron's `GPTDataset`, which has shifted the labels."""
    names = ("tokens", "labels", "loss_mask", "position_ids")
    tokens, labels, counts, positions = (_of(batch, name) for name in names)
    return tokens, labels, counts.float(), None, positions


def encoder_batch(batch: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """Return what an encoder takes, of a batch of transformers.

    Raises:
        ConfigError: If a key is missing.
    """
    tokens, labels = _of(batch, "input_ids"), _of(batch, "labels")
    mask = batch.get("attention_mask")
    types = batch.get("token_type_ids")
    return (
        tokens,
        torch.zeros_like(tokens) if types is None else types,
        batch.get("next_sentence_label"),
        (labels != IGNORED).float(),
        labels.clamp(min=0),
        torch.ones_like(tokens) if mask is None else mask,
    )


def pair_batch(batch: Mapping[str, torch.Tensor], *, first_token: int) -> tuple[Any, ...]:
    """Return what an encoder with a decoder takes, of a batch of transformers; masks are True where nothing is seen.

    Raises:
        ConfigError: If a key is missing.
    """
    tokens, labels = _of(batch, "input_ids"), _of(batch, "labels")
    decoder_tokens = batch.get("decoder_input_ids")
    if decoder_tokens is None:
        decoder_tokens = torch.roll(labels, 1, dims=1).clamp(min=0)
        decoder_tokens[:, 0] = first_token
    mask = batch.get("attention_mask")
    hidden = torch.zeros_like(tokens) if mask is None else 1 - mask
    length = labels.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
    own, cross = (
        hidden.bool()[:, None, None, :].expand(-1, 1, rows, -1) for rows in (tokens.shape[1], length)
    )
    return (
        tokens,
        decoder_tokens,
        (labels != IGNORED).float(),
        labels.clamp(min=0),
        own,
        causal.expand(len(tokens), 1, -1, -1),
        cross,
    )


def mean_of_tokens(loss_mask: torch.Tensor, output_tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the mean loss of the tokens that count, and what is reported: that, averaged over the data ranks.

    With ``calculate_per_token_loss``: the sum, the number of tokens, and what is reported.
    """
    losses = output_tensor.float().reshape(-1) * loss_mask.reshape(-1)
    total, count = sum_over_sequence_ranks(torch.stack([losses.sum(), loss_mask.sum()]))
    plugin = AcceleratorState().megatron_lm_plugin
    reported = {"lm loss": average_over_data_ranks([total / count.clamp(min=1)])[0]}
    if plugin.calculate_per_token_loss:
        return losses.sum(), loss_mask.sum().int(), reported
    return total / count.clamp(min=1), reported


def encoder_loss(loss_mask: torch.Tensor, sentence_order: Any, output_tensor: Any) -> tuple[Any, ...]:
    """Return the loss of the masked tokens, with that of the order of sentences where there are labels for it."""
    losses, order_logits = output_tensor
    first, *rest = mean_of_tokens(loss_mask, losses)
    if sentence_order is None:
        return first, *rest
    order_loss = torch.nn.functional.cross_entropy(order_logits.view(-1, 2).float(), sentence_order.view(-1))
    *rest, reported = rest
    return first + order_loss, *rest, {**reported, "sop loss": average_over_data_ranks([order_loss])[0]}


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of each token, of logits of which each rank has a part of the vocabulary."""
    losses: torch.Tensor = core("tensor_parallel").vocab_parallel_cross_entropy(
        logits.transpose(0, 1).float().contiguous(), labels.transpose(0, 1).contiguous()
    )
    return losses.transpose(0, 1).contiguous()


def whole_logits(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits over the whole vocabulary, which is padded. Communicates: ranks that share layers."""
    whole: torch.Tensor = core("tensor_parallel").gather_from_tensor_model_parallel_region(logits.detach())
    return whole


def _with_logits(loss_func: Callable[..., Any], loss_mask: Any, logits: Any, output: Any) -> tuple[Any, ...]:
    *rest, reported = loss_func(loss_mask, output)
    return *rest, {**reported, "logits": logits}


def _of(batch: Mapping[str, torch.Tensor], key: str) -> torch.Tensor:
    if key not in batch:
        raise ConfigError(
            f"Megatron-LM needs `{key}` in each batch, which has: {', '.join(map(str, batch)) or 'nothing'}. Let the "
            "collator add it, or set `custom_get_batch_function` of the MegatronLMPlugin."
        )
    return batch[key]
