import warnings
from contextlib import contextmanager

import pytest
import torch

from accel_backends.sequence_parallel.cut import SequenceCut
from accel_backends.sequence_parallel.loader import SequencePart
from accel_backends.strategies.deepspeed.sequences import refuse_left_padding
from accel_state.errors import ConfigError

IDS = torch.arange(12).reshape(2, 6)


def make_loader():
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]] * 2)
    return torch.utils.data.DataLoader(
        [{"input_ids": ids, "attention_mask": row} for ids, row in zip(IDS, mask, strict=True)]
    )


def test_a_loader_of_parts_is_else_the_loader_itself():
    loader = make_loader()
    part = SequencePart(loader, cut=SequenceCut(3, 1), setting="sp_size", check=refuse_left_padding)
    assert [batch["input_ids"].tolist() for batch in part] == [[[2, 3]], [[8, 9]]]
    assert (len(part), part.dataset, part.batch_size) == (2, loader.dataset, 1)


def test_sequences_that_cannot_be_split_are_padded_and_that_is_reported_once_or_refused():
    used = []

    @contextmanager
    def during(num_tokens, num_real, parts):
        used.append((num_tokens, num_real, [tuple(part.shape) for part in parts]))
        yield
        used.append("done")

    settings = {"cut": SequenceCut(2, 1, is_balanced=True), "setting": "cp_size"}
    part = SequencePart(make_loader(), **settings, pads=True, during=during)
    with pytest.warns(UserWarning, match="Sequences of 6 tokens .* 2 tokens are appended") as told:
        assert [batch["input_ids"].tolist() for batch in part] == [[[2, 3, 4, 5]], [[8, 9, 10, 11]]]
    assert len(told) == 1
    assert used == [(8, 6, [(1, 4)] * 3), "done"] * 2
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(ConfigError, match="Pad them to a multiple of 4"),
    ):
        next(iter(SequencePart(make_loader(), **settings)))


def test_padding_on_the_left_is_refused_where_attention_uses_no_mask():
    with pytest.raises(ConfigError, match="Pad on the right"):
        refuse_left_padding({"attention_mask": torch.tensor([[0, 1, 1]])})
