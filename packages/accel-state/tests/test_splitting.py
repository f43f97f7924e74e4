"""Splitting between processes: complete, in order, fair, whatever the type."""

import sys
import types
from collections import OrderedDict, namedtuple
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel_state.errors import ConfigError
from accel_state.splitting import share_bounds, split_between_processes

WORLDS = st.integers(1, 9)
ITEMS = st.lists(st.integers(), max_size=40)


def shares(inputs, world_size, *, apply_padding=False):
    parts = []
    for rank in range(world_size):
        with split_between_processes(
            inputs, rank=rank, world_size=world_size, apply_padding=apply_padding
        ) as part:
            parts.append(part)
    return parts


@given(ITEMS, WORLDS)
def test_shares_add_up_in_order_and_differ_by_one_at_most(items, world_size):
    parts = shares(items, world_size)
    assert [item for part in parts for item in part] == items
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(ITEMS, WORLDS)
def test_padded_shares_are_equally_long_and_filled_with_the_last_item(items, world_size):
    plain, padded = shares(items, world_size), shares(items, world_size, apply_padding=True)
    if world_size == 1:
        assert padded == [items]
        return
    assert {len(part) for part in padded} == {len(plain[0])}
    for short, full in zip(plain, padded, strict=True):
        assert full == short + items[-1:] * (len(full) - len(short))


@given(ITEMS, st.integers(2, 9), st.booleans())
def test_every_type_is_split_at_the_same_places(items, world_size, apply_padding):
    np = pytest.importorskip("numpy", reason="arrays are split where NumPy is installed")
    expected = shares(items, world_size, apply_padding=apply_padding)

    def split(inputs):
        return shares(inputs, world_size, apply_padding=apply_padding)

    data = np.array(items, dtype=object).astype(float)
    floats = [[float(item) for item in part] for part in expected]
    assert split(tuple(items)) == [tuple(part) for part in expected]
    assert [part.tolist() for part in split(torch.from_numpy(data))] == floats
    assert [part.tolist() for part in split(data)] == floats
    assert split({"a": items, "b": tuple(items)}) == [{"a": part, "b": tuple(part)} for part in expected]
    assert split({"outer": {"inner": items}}) == [{"outer": {"inner": part}} for part in expected]


@given(st.integers(0, 1000), st.integers(1, 50))
def test_bounds_cover_everything_once(num_items, world_size):
    bounds = [share_bounds(num_items, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == num_items
    assert all(left[1] == right[0] for left, right in pairwise(bounds))


def test_three_prompts_on_two_processes_as_documented():
    prompts = ["a dog", "a cat", "a chicken"]
    assert shares(prompts, 2) == [["a dog", "a cat"], ["a chicken"]]
    assert shares(prompts, 2, apply_padding=True) == [["a dog", "a cat"], ["a chicken", "a chicken"]]


def test_fewer_items_than_processes_leave_the_last_with_none_or_the_last_item():
    assert shares(["x"], 3) == [["x"], [], []]
    assert shares(["x"], 3, apply_padding=True) == [["x"], ["x"], ["x"]]
    assert [part.shape for part in shares(torch.zeros(1, 4), 2)] == [(1, 4), (0, 4)]


def test_single_process_gets_the_very_object():
    inputs = object()
    with split_between_processes(inputs, rank=0, world_size=1, apply_padding=True) as part:
        assert part is inputs


def test_other_types_keep_what_they_can():
    Pair = namedtuple("Pair", "x y")
    assert shares(Pair(1, 2), 2) == [(1,), (2,)]
    assert shares(range(3), 2) == [[0, 1], [2]]
    assert shares(OrderedDict(a=[1, 2]), 2) == [{"a": [1]}, {"a": [2]}]
    assert shares({}, 2) == [{}, {}]


def test_map_style_data_set_becomes_a_subset():
    parts = shares(torch.utils.data.TensorDataset(torch.arange(3)), 2, apply_padding=True)
    assert [[int(row[0]) for row in part] for part in parts] == [[0, 1], [2, 2]]


def test_data_set_of_the_datasets_library_selects_rows(monkeypatch):
    class Dataset:
        """Like the real one no sequence by type, and with rows that are picked by `select`."""

        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            raise AssertionError("rows are to be selected at once")

        def select(self, indices):
            return Dataset([self.rows[index] for index in indices])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(Dataset=Dataset))
    parts = shares(Dataset(["a", "b", "c"]), 2, apply_padding=True)
    assert [part.rows for part in parts] == [["a", "b"], ["c", "c"]]


def test_values_of_different_length_are_refused_with_their_lengths():
    with pytest.raises(ConfigError, match="same length, got `a`: 2, `b`: 3"):
        shares({"a": [1, 2], "b": [1, 2, 3]}, 2)


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ("text", "str"),
        ({1, 2}, "set"),
        (3, "int"),
        ((item for item in "ab"), "generator"),
        (None, "NoneType"),
    ],
)
def test_what_has_no_order_is_refused(inputs, kind):
    with pytest.raises(ConfigError, match=f"is a `{kind}`, which cannot be split"):
        shares(inputs, 2)


def test_tensor_without_dimensions_is_refused():
    with pytest.raises(ConfigError, match="a 0-dim tensor"):
        shares(torch.tensor(1), 2)


def test_error_in_the_body_passes_through():
    with pytest.raises(KeyError, match="inside"):
        with split_between_processes([1], rank=0, world_size=2):
            raise KeyError("inside")


class Labelled:
    """Rows with labels, as those of pandas: brackets look labels up, `take` goes by position."""

    def __init__(self, rows, labels):
        self.rows, self.labels = rows, labels

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, labels):
        return [self.rows[self.labels.index(label)] for label in labels]

    def take(self, indices, axis=0):
        return [self.rows[index] for index in indices]


def test_rows_with_labels_are_split_by_position():
    labelled = Labelled(["a", "b", "c"], [2, 1, 0])
    assert shares(labelled, 2) == [["a", "b"], ["c"]]
    assert shares(labelled, 2, apply_padding=True) == [["a", "b"], ["c", "c"]]


def test_pandas_objects_are_split_by_position():
    pandas = pytest.importorskip("pandas", reason="pandas is not among the requirements of the tests")
    series = pandas.Series(list("abcd"), index=[3, 2, 1, 0])
    assert [part.tolist() for part in shares(series, 2)] == [["a", "b"], ["c", "d"]]
    frame = pandas.DataFrame({"x": [1, 2, 3]})
    assert [part["x"].tolist() for part in shares(frame, 2, apply_padding=True)] == [[1, 2], [3, 3]]
