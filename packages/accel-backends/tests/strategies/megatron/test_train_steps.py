import pytest
import torch

from accel_backends.strategies.megatron.train_steps import (
    T5TrainStep,
    decoder_batch,
    encoder_batch,
    pair_batch,
)
from accel_state.errors import ConfigError

CPU = torch.device("cpu")
TOKENS = torch.tensor([[5, 6, 7, 8]])


def test_labels_are_shifted_and_ignored_ones_count_nothing():
    tokens, labels, counts, mask, positions = decoder_batch(
        {"input_ids": TOKENS, "labels": torch.tensor([[5, 6, -100, 8]])}
    )
    assert labels.tolist() == [[6, 0, 8, 0]]
    assert counts.tolist() == [[1, 0, 1, 0]]
    assert positions.tolist() == [[0, 1, 2, 3]]
    assert tokens is TOKENS
    assert mask is None


def test_rows_padded_before_their_tokens_are_refused():
    batch = {"input_ids": TOKENS, "labels": TOKENS, "attention_mask": torch.tensor([[0, 1, 1, 1]])}
    with pytest.raises(ConfigError, match="padding_side"):
        decoder_batch(batch)


def test_a_missing_key_is_named():
    with pytest.raises(ConfigError, match="needs `labels` in each batch, which has: input_ids"):
        encoder_batch({"input_ids": TOKENS})


def test_a_decoder_begins_with_the_first_token_and_sees_no_padding():
    batch = {
        "input_ids": TOKENS,
        "labels": torch.tensor([[1, 2]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0]]),
    }
    _, decoder_tokens, _, _, own, causal, cross = pair_batch(batch, first_token=9)
    assert decoder_tokens.tolist() == [[9, 1]]
    assert own[0, 0, 0].tolist() == [False, False, False, True]
    assert causal[0, 0].tolist() == [[False, True], [False, False]]
    assert cross.shape == (1, 1, 2, 4)


def test_masks_are_true_where_nothing_is_seen():
    mask = torch.tensor([[1, 1, 0]])
    assert T5TrainStep.attn_mask_postprocess(mask).tolist() == [[[False, False, True]] * 2 + [[True] * 3]]
    assert T5TrainStep.get_decoder_mask(2, CPU).tolist() == [[[False, True], [False, False]]]
    assert T5TrainStep.get_enc_dec_mask(mask, 2, CPU).tolist() == [[[False, False, True]] * 2]
