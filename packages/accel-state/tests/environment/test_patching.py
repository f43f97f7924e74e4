from __future__ import annotations

import asyncio
import unittest

import pytest

from accel_state.environment import (
    clear_environment,
    export,
    patch_environment,
    purge_accelerate_environment,
    snapshot,
    variable,
)


@pytest.fixture(autouse=True)
def known_environment():
    with patch_environment(ACCEL_TEST_A="old", ACCEL_TEST_B=None, ACCELERATE_TEST="old", ACCELERATE_NEW=None):
        yield


def test_patch_sets_text_in_upper_case_and_restores():
    with patch_environment(accel_test_a=3, ACCEL_TEST_B=True):
        assert (variable("ACCEL_TEST_A"), variable("ACCEL_TEST_B")) == ("3", "True")
        assert variable("accel_test_a") is None
    assert (variable("ACCEL_TEST_A"), variable("ACCEL_TEST_B")) == ("old", None)


def test_patch_with_none_unsets_for_the_block():
    with patch_environment(ACCEL_TEST_A=None):
        assert variable("ACCEL_TEST_A") is None
    assert variable("ACCEL_TEST_A") == "old"


def test_patch_restores_after_an_error():
    with pytest.raises(KeyError, match="inside"):
        with patch_environment(ACCEL_TEST_A="new", ACCEL_TEST_B="new"):
            raise KeyError("inside")
    assert (variable("ACCEL_TEST_A"), variable("ACCEL_TEST_B")) == ("old", None)


def test_patch_restores_what_the_block_changed_again():
    with patch_environment(ACCEL_TEST_A="new", ACCEL_TEST_B="new"):
        export({"ACCEL_TEST_A": None, "ACCEL_TEST_B": "other"})
    assert (variable("ACCEL_TEST_A"), variable("ACCEL_TEST_B")) == ("old", None)


def test_patch_restores_when_a_value_cannot_be_set():
    with pytest.raises(ValueError, match="null"):
        with patch_environment(ACCEL_TEST_A="new", ACCEL_TEST_B="a\0b"):
            pass
    assert variable("ACCEL_TEST_A") == "old"


def test_patch_is_a_decorator_too():
    @patch_environment(ACCEL_TEST_A="new")
    def inside() -> str | None:
        return variable("ACCEL_TEST_A")

    assert inside() == "new"
    assert inside() == "new"
    assert variable("ACCEL_TEST_A") == "old"


def test_clear_empties_and_restores_without_what_the_block_added():
    before = snapshot()
    with clear_environment():
        assert snapshot() == {}
        export({"ACCEL_TEST_B": "added"})
    assert snapshot() == before


def test_clear_restores_after_an_error():
    before = snapshot()
    with pytest.raises(KeyError), clear_environment():
        raise KeyError
    assert snapshot() == before


def change() -> str:
    export({"ACCELERATE_TEST": "changed", "ACCELERATE_NEW": "added", "ACCEL_TEST_B": "stays"})
    return "result"


def assert_purged() -> None:
    assert (variable("ACCELERATE_TEST"), variable("ACCELERATE_NEW")) == ("old", None)
    assert variable("ACCEL_TEST_B") == "stays"


def test_purge_undoes_what_a_function_does_to_our_variables_only():
    assert purge_accelerate_environment(change)() == "result"
    assert_purged()


def test_purge_keeps_name_and_signature_of_the_function():
    assert purge_accelerate_environment(change).__name__ == "change"


def test_purge_undoes_after_an_error():
    @purge_accelerate_environment
    def fail() -> None:
        change()
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert_purged()


def test_purge_brings_back_a_variable_that_was_removed():
    purge_accelerate_environment(lambda: export({"ACCELERATE_TEST": None}))()
    assert variable("ACCELERATE_TEST") == "old"


def test_purge_covers_coroutines_until_they_end():
    @purge_accelerate_environment
    async def work() -> str:
        change()
        await asyncio.sleep(0)
        assert variable("ACCELERATE_NEW") == "added"
        return "result"

    assert asyncio.run(work()) == "result"
    assert_purged()


def test_purge_covers_generators_until_they_end():
    @purge_accelerate_environment
    def steps():
        change()
        yield variable("ACCELERATE_NEW")

    assert list(steps()) == ["added"]
    assert_purged()


def test_purge_covers_every_kind_of_method_and_those_of_subclasses():
    @purge_accelerate_environment
    class Base:
        def method(self) -> str:
            return change()

        @classmethod
        def of_class(cls) -> str:
            return change()

        @staticmethod
        def of_nobody() -> str:
            return change()

    class Child(Base):
        def added(self) -> str:
            return change()

    for call in (Base().method, Base.of_class, Base.of_nobody, Child().added, Child.of_class):
        assert call() == "result"
        assert_purged()


def test_purge_leaves_a_class_its_own_subclass_hook():
    seen = []

    @purge_accelerate_environment
    class Base:
        def __init_subclass__(cls, *, label: str) -> None:
            seen.append((cls.__name__, label))

    class Child(Base, label="a"):
        pass

    assert seen == [("Child", "a")]
    assert issubclass(Child, Base)


def test_purge_works_on_a_test_case():
    @purge_accelerate_environment
    class Case(unittest.TestCase):
        def test_changes(self) -> None:
            change()

    result = unittest.TestResult()
    Case("test_changes").run(result)
    assert result.wasSuccessful()
    assert_purged()
