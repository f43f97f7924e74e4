from __future__ import annotations

import warnings

import pytest
import torch

from accel_bigmodel.loading.matching import match
from accel_state.errors import CheckpointError

ONE, TWO = torch.Size([1]), torch.Size([2])


def test_what_fits_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        match({"a": ONE, "b": TWO}, {"b": TWO, "a": ONE}).raise_or_warn("file", strict=True)
        match({}, {}).raise_or_warn("file", strict=True)


def test_one_name_of_a_tie_is_enough():
    match({"a": ONE, "b": ONE}, {"b": ONE}, ties=[["a", "b"]]).raise_or_warn("file", strict=True)
    assert match({"a": ONE, "b": ONE, "c": ONE}, {"c": ONE}, ties=[["a", "b"]]).missing == ["a", "b"]


def test_everything_that_differs_is_in_one_message():
    found = match({"a": ONE, "linear.weight": ONE, "x": ONE}, {"a": TWO, "linear.wieght": ONE, "z": None})
    with pytest.raises(CheckpointError) as caught:
        found.raise_or_warn("some/file", strict=True)
    assert str(caught.value).splitlines() == [
        "`some/file` does not fit the model:",
        "- `a` has the shape (2,) in the checkpoint and (1,) in the model",
        "- not in the checkpoint: `linear.weight`, `x`",
        "- not in the model: `linear.wieght` Did you mean `linear.weight`?, `z`",
    ]


def test_without_strict_names_are_logged_and_shapes_still_an_error(caplog):
    match({"a": ONE, "b": ONE}, {"a": ONE, "c": ONE}).raise_or_warn("file", strict=False)
    for part in ("not all of it fits", "not in the checkpoint: `b`", "not in the model: `c`"):
        assert part in caplog.text
    with pytest.raises(CheckpointError, match="has the shape"):
        match({"a": ONE}, {"a": TWO}).raise_or_warn("file", strict=False)


def test_a_checkpoint_with_no_common_name_is_refused():
    with pytest.raises(CheckpointError, match="does not fit"):
        match({"a": ONE}, {"module.a": ONE}).raise_or_warn("file", strict=False)


def test_long_lists_are_shortened_and_counted():
    found = match({f"n{i}": ONE for i in range(8)}, {f"m{i}": ONE for i in range(7)})
    with pytest.raises(CheckpointError, match=r"(?s)`n4` and 3 more.*`m4`.* and 2 more"):
        found.raise_or_warn("file", strict=True)


def test_values_without_a_shape_fit_anything():
    match({"state": None}, {"state": TWO}).raise_or_warn("file", strict=True)
    with pytest.raises(CheckpointError, match="no tensor in the checkpoint"):
        match({"a": ONE}, {"a": None}).raise_or_warn("file", strict=True)
