import pytest
import torch

from accel_backends.strategies.deepspeed.sequences import SequencePart, part_of_batch
from accel_state.errors import ConfigError

IDS = torch.arange(12).reshape(2, 6)


def test_each_rank_gets_its_part_of_every_sequence_with_labels_one_token_ahead():
    weights = torch.ones(2)
    batch = {"input_ids": IDS, "labels": IDS + 100, "weights": weights, "names": ["a", "b"]}
    parts = [part_of_batch(batch, rank=rank, size=2) for rank in range(2)]
    for name, whole in (
        ("input_ids", IDS),
        ("position_ids", torch.arange(6).expand(2, -1)),
        ("shift_labels", torch.tensor([[101, 102, 103, 104, 105, -100], [107, 108, 109, 110, 111, -100]])),
    ):
        assert torch.cat([part[name] for part in parts], dim=1).equal(whole)
    assert all(part["weights"] is weights and part["names"] == ["a", "b"] for part in parts)
    assert "labels" not in parts[0]
    assert "labels" in batch


def test_positions_of_packed_samples_are_kept():
    packed = torch.tensor([[0, 1, 2, 0, 1, 0]] * 2)
    part = part_of_batch({"input_ids": IDS, "position_ids": packed}, rank=1, size=3)
    assert part["position_ids"].equal(packed[:, 2:4])
    assert part.keys() == {"input_ids", "position_ids"}


@pytest.mark.parametrize(
    ("batch", "size", "told"),
    [
        ({"input_ids": IDS}, 4, "Sequences of 6 tokens cannot be shared by 4 ranks"),
        ({"pixels": IDS}, 2, r"must be a dict with `input_ids`.*got \['pixels'\]"),
        (IDS, 2, "got `Tensor`"),
        ({"input_ids": IDS, "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1]] * 2)}, 2, "Pad on the right"),
    ],
)
def test_batches_that_cannot_be_shared_are_refused(batch, size, told):
    with pytest.raises(ConfigError, match=told):
        part_of_batch(batch, rank=0, size=size)


def test_a_loader_of_parts_is_else_the_loader_itself():
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]] * 2)
    loader = torch.utils.data.DataLoader(
        [{"input_ids": ids, "attention_mask": row} for ids, row in zip(IDS, mask)]
    )
    part = SequencePart(loader, rank=1, size=3)
    assert [batch["input_ids"].tolist() for batch in part] == [[[2, 3]], [[8, 9]]]
    assert (len(part), part.dataset, part.batch_size) == (2, loader.dataset, 1)
