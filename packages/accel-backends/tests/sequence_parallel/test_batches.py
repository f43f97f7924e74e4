import pytest
import torch

from accel_backends.sequence_parallel.batches import check_length, padded_batch, part_of_batch, whole_batch
from accel_backends.sequence_parallel.cut import SequenceCut
from accel_state.errors import ConfigError

IDS = torch.arange(12).reshape(2, 6)


def test_each_rank_gets_its_part_of_every_sequence_with_labels_one_token_ahead():
    weights = torch.ones(2)
    batch = {"input_ids": IDS, "labels": IDS + 100, "weights": weights, "names": ["a", "b"]}
    parts = [part_of_batch(whole_batch(batch), SequenceCut(2, rank)) for rank in range(2)]
    for name, whole in (
        ("input_ids", IDS),
        ("position_ids", torch.arange(6).expand(2, -1)),
        ("shift_labels", torch.tensor([[101, 102, 103, 104, 105, -100], [107, 108, 109, 110, 111, -100]])),
    ):
        assert torch.cat([part[name] for part in parts], dim=1).equal(whole)
    assert all(part["weights"] is weights and part["names"] == ["a", "b"] for part in parts)
    assert "labels" not in parts[0]
    assert "labels" in batch


def test_positions_of_packed_samples_and_labels_that_are_shifted_already_are_kept():
    packed = torch.tensor([[0, 1, 2, 0, 1, 0]] * 2)
    batch = {"input_ids": IDS, "position_ids": packed, "shift_labels": IDS, "labels": IDS}
    part = part_of_batch(whole_batch(batch), SequenceCut(3, 1))
    assert part["position_ids"].equal(packed[:, 2:4])
    assert part["shift_labels"].equal(IDS[:, 2:4])
    assert part.keys() == {"input_ids", "position_ids", "shift_labels"}


def test_padding_counts_nowhere():
    batch = {"input_ids": IDS, "labels": IDS, "attention_mask": torch.ones_like(IDS)}
    padded = padded_batch(whole_batch(batch), 2)
    assert {name: value[:, 6:].tolist() for name, value in padded.items()} == {
        "input_ids": [[0, 0]] * 2,
        "attention_mask": [[0, 0]] * 2,
        "shift_labels": [[-100, -100]] * 2,
        "position_ids": [[0, 0]] * 2,
    }


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"pixels": IDS}, r"must be a dict with `input_ids`.*got \['pixels'\]"),
        (IDS, "got `Tensor`"),
    ],
)
def test_batches_without_tokens_are_refused(batch, told):
    with pytest.raises(ConfigError, match=told):
        whole_batch(batch)


def test_lengths_that_cannot_be_split_are_refused_with_what_would_do():
    told = r"Sequences of 6 tokens cannot be shared by 2 ranks \(`cp_size`\). Pad them to a multiple of 4"
    with pytest.raises(ConfigError, match=told):
        check_length(6, SequenceCut(2, 0, is_balanced=True), setting="cp_size")
