from __future__ import annotations

import types
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel_ops import honor_type, is_namedtuple, is_torch_tensor, recursively_apply
from accel_ops.nested.structures import flatten, rebuild

Point = namedtuple("Point", "x y")


class Encoding(UserDict):
    """Like a tokenizer's result: a mapping with attributes next to its items."""

    def __init__(self, data: dict[str, Any], encodings: object = None) -> None:
        super().__init__(data)
        self.encodings = encodings


class Frozen(Mapping):
    def __init__(self, items: dict[str, Any]) -> None:
        self._items = items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


@dataclass(frozen=True, slots=True)
class Batch:
    rows: torch.Tensor
    name: str = "batch"


@dataclass
class Output:
    loss: torch.Tensor
    total: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.loss * 10


leaves = st.one_of(st.integers(), st.text(max_size=3), st.none())
structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=4).map(OrderedDict),
        st.dictionaries(st.text(max_size=3), inner, max_size=4).map(Encoding),
        st.dictionaries(st.text(max_size=3), inner, max_size=4).map(Frozen),
        inner.map(lambda value: Batch(value)),
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, Frozen):
        return same(left._items, right._items)
    return bool(left == right)


@given(structures)
def test_the_identity_on_leaves_gives_back_the_same_structure(data):
    rebuilt = recursively_apply(lambda leaf: leaf, data, test_type=lambda value: isinstance(value, int))
    assert same(rebuilt, data)


@given(structures)
def test_every_leaf_that_passes_the_test_is_worked_on_once(data):
    seen: list[int] = []
    recursively_apply(seen.append, data, test_type=lambda value: isinstance(value, int))
    assert len(seen) == count_ints(data)


def count_ints(data: Any) -> int:
    if isinstance(data, Mapping):
        return sum(map(count_ints, data.values()))
    if isinstance(data, (list, tuple)):
        return sum(map(count_ints, data))
    if isinstance(data, Batch):
        return count_ints(data.rows)
    return int(isinstance(data, int))


def test_arguments_reach_the_function():
    result = recursively_apply(lambda tensor, by, *, plus: tensor * by + plus, [torch.ones(1)], 3, plus=1)
    assert result[0].item() == 4


@pytest.mark.parametrize(
    "data",
    [
        Point(torch.ones(1), 2),
        defaultdict(list, a=torch.ones(1)),
        OrderedDict(b=torch.ones(1), a=1),
        Encoding({"a": torch.ones(1)}, encodings="kept"),
        Frozen({"a": torch.ones(1)}),
        types.SimpleNamespace,
        Batch(torch.ones(1)),
    ],
    ids=lambda data: type(data).__name__,
)
def test_containers_keep_their_type(data):
    assert type(recursively_apply(lambda tensor: tensor + 1, data)) is type(data)


def test_a_default_factory_and_attributes_survive():
    counts = recursively_apply(lambda tensor: tensor + 1, defaultdict(list, a=torch.ones(1)))
    assert counts["new"] == []
    encoding = recursively_apply(lambda tensor: tensor + 1, Encoding({"a": torch.ones(1)}, encodings="kept"))
    assert encoding.encodings == "kept"
    assert encoding["a"].item() == 2


def test_the_original_is_left_unchanged():
    for original in ({"a": torch.ones(1)}, Encoding({"a": torch.ones(1)}), Frozen({"a": torch.ones(1)})):
        recursively_apply(lambda tensor: tensor + 1, original)
        assert original["a"].item() == 1


def test_dataclasses_are_copied_field_by_field_without_running_their_init():
    output = Output(torch.ones(1))
    doubled = recursively_apply(lambda tensor: tensor * 2, output)
    assert (doubled.loss.item(), doubled.total.item(), output.loss.item()) == (2, 20, 1)
    assert recursively_apply(lambda tensor: tensor * 2, Batch(torch.ones(1))).rows.item() == 2


def test_the_structured_results_of_torch_are_rebuilt():
    largest = torch.tensor([[1.0, 3.0]]).max(dim=1)
    moved = recursively_apply(lambda tensor: tensor + 1, largest)
    assert type(moved) is type(largest)
    assert moved.values.item() == 4


def test_other_leaves_are_handed_on_or_refused():
    assert recursively_apply(lambda tensor: tensor, ["text", None]) == ["text", None]
    with pytest.raises(
        TypeError, match=r"Unsupported types \(<class 'str'>\) passed to `double`.*`is_torch_tensor`"
    ):
        recursively_apply(double, ["text"], error_on_other_type=True)


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def test_a_container_that_passes_the_test_is_not_entered():
    assert recursively_apply(len, [[1, 2], [3]], test_type=lambda value: value in ([1, 2], [3])) == [2, 1]


def test_honor_type_gives_fields_to_named_tuples_and_a_sequence_to_others():
    assert honor_type(Point(0, 0), (value for value in (1, 2))) == Point(1, 2)
    assert honor_type([0], (value for value in (1, 2))) == [1, 2]
    assert honor_type((0,), iter((1, 2))) == (1, 2)


def test_is_namedtuple_knows_them_from_tuples():
    assert is_namedtuple(Point(1, 2))
    assert not is_namedtuple((1, 2))
    assert not is_namedtuple(torch.ones(1, 2).max(dim=1))
    assert is_torch_tensor(torch.nn.Parameter(torch.ones(1)))
    assert not is_torch_tensor([torch.ones(1)])


class Unchangeable(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("cannot be changed")


def test_a_dict_that_cannot_be_changed_is_built_again():
    result = recursively_apply(torch.neg, Unchangeable(x=torch.ones(1)))
    assert type(result) is Unchangeable
    assert result["x"].item() == -1


def structure_of(data: object) -> str:
    return flatten(data, user=structure_of)[1]


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.ones(2), "c": [torch.ones(3)]},
        {"a": torch.ones(2), "b": torch.ones(3)},
        {"b": [torch.ones(3)], "a": torch.ones(2)},
        {"a": [torch.ones(2), torch.ones(3)]},
    ],
)
def test_any_change_of_the_structure_changes_its_text(other):
    assert structure_of({"a": torch.ones(2), "b": [torch.ones(3)]}) != structure_of(other)


def test_nesting_is_distinguished():
    one, two = torch.ones(1), torch.ones(1)
    assert structure_of([[one], two]) != structure_of([one, [two]])


def test_keys_are_written_by_value_and_objects_by_class():
    class Key:
        pass

    rows = torch.ones(1)
    assert structure_of({Key(): rows}) == structure_of({Key(): rows})
    assert structure_of({("a", Key()): rows}) != structure_of({("b", Key()): rows})


def test_leaves_are_put_back_where_they_were():
    data = {"a": torch.ones(2), "b": (torch.zeros(1),)}
    leaves, _ = flatten(data, user=rebuild)
    rebuilt = rebuild(data, iter([leaf + 1 for leaf in leaves]))
    assert rebuilt["a"].tolist() == [2, 2]
    assert rebuilt["b"][0].tolist() == [1]


class Row(namedtuple("Row", ["first", "second"])):
    """A named tuple whose constructor takes one value."""

    def __new__(cls, values):
        return super().__new__(cls, *values)


def test_a_named_tuple_with_its_own_constructor_is_rebuilt():
    row = recursively_apply(torch.neg, Row((torch.ones(1), torch.zeros(2))))
    assert isinstance(row, Row)
    assert (row.first.tolist(), row.second.tolist()) == ([-1], [0, 0])
