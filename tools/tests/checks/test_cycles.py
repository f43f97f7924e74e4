import pytest

from tools.checks.cycles import cycles, problems

STATE = "packages/accel-state/src/accel_state"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


def test_a_tidy_checkout_has_none(checkout):
    assert problems(checkout.root) == []


@pytest.mark.parametrize(
    "code",
    [
        "from accel_state.first import x\n",
        "from accel_state import first\n",
        "def f():\n    import accel_state.first\n",
        f"{FOR_TYPES}from accel_state.first import X\n",
    ],
)
def test_a_cycle_is_told_however_it_is_closed(checkout, code):
    checkout.write(f"{STATE}/first.py", "import accel_state.second\n")
    checkout.write(f"{STATE}/second.py", code)
    assert problems(checkout.root) == [
        "import cycle: accel_state.first -> accel_state.second -> accel_state.first"
    ]


def test_a_package_may_name_for_the_type_checker_what_it_hands_on(checkout):
    checkout.write(f"{STATE}/__init__.py", f"{FOR_TYPES}from accel_state.first import x as x\nversion = 1\n")
    checkout.write(f"{STATE}/first.py", "from accel_state import version\n")
    assert problems(checkout.root) == []
    checkout.write(f"{STATE}/__init__.py", "from accel_state.first import x\nversion = 1\n")
    assert problems(checkout.root) == ["import cycle: accel_state -> accel_state.first -> accel_state"]


def test_every_cycle_is_told_once():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e", "a"}, "e": {"d"}, "f": set()}
    assert sorted(cycles(graph)) == [["a", "b", "c"], ["d", "e"]]
