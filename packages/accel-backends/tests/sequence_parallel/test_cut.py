import pytest
import torch

from accel_backends.sequence_parallel.cut import SequenceCut


@pytest.mark.parametrize(
    ("is_balanced", "places"),
    [
        (False, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
        (True, [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]),
    ],
)
def test_ranks_have_pieces_that_add_up(is_balanced, places):
    cuts = [SequenceCut(3, rank, is_balanced) for rank in range(3)]
    whole = torch.arange(24).reshape(2, 12)
    parts = [cut.part_of(whole, 1) for cut in cuts]
    assert [part[0].tolist() for part in parts] == places
    assert [cut.positions(12, torch.device("cpu")).tolist() for cut in cuts] == places
    assert cuts[0].positions(12, torch.device("cpu"), rank=2).tolist() == places[2]
    assert cuts[1].whole_of(parts, 1).equal(whole)


def test_balanced_ranks_see_as_many_earlier_tokens():
    positions = [
        SequenceCut(4, rank, is_balanced=True).positions(16, torch.device("cpu")) for rank in range(4)
    ]
    assert len({int(one.sum()) for one in positions}) == 1
