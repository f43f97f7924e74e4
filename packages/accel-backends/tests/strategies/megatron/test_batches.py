import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from accel_backends.strategies.megatron.loaders import micro_batches, with_larger_batches
from accel_backends.strategies.megatron.optimizers import optimizer_settings
from accel_backends.strategies.megatron.train_steps import decoder_batch, encoder_batch, pair_batch
from accel_state.errors import ConfigError

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


def test_rows_are_divided_almost_evenly():
    parts = micro_batches({"input_ids": torch.arange(5)[:, None], "name": "a"}, 2)
    assert [part["input_ids"].flatten().tolist() for part in parts] == [[0, 1, 2], [3, 4]]
    assert [part["name"] for part in parts] == ["a", "a"]
    assert len(micro_batches({"input_ids": torch.arange(1)[:, None]}, 4)) == 1


def test_a_loader_gives_all_micro_batches_at_once():
    loader = with_larger_batches(DataLoader(list(range(7)), batch_size=2), 2)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6]]


def test_a_loader_without_a_batch_size_is_refused():
    sampler = BatchSampler(SequentialSampler(range(4)), 2, False)
    with pytest.raises(ConfigError, match="batch_size"):
        with_larger_batches(DataLoader(list(range(4)), batch_sampler=sampler), 2)


def test_an_optimizer_is_read_by_its_settings():
    parameter = torch.nn.Parameter(torch.ones(1))
    found = optimizer_settings(torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.2, betas=(0.5, 0.6)))
    assert found["lr"] == 0.1
    assert (found["weight_decay"], found["adam_beta1"], found["adam_beta2"]) == (0.2, 0.5, 0.6)
    with pytest.raises(ConfigError, match="different learning rates"):
        optimizer_settings(
            torch.optim.SGD(
                [{"params": [parameter], "lr": 1.0}, {"params": [torch.nn.Parameter(parameter)]}], lr=0.1
            )
        )
