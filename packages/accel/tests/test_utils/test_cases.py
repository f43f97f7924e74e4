"""Test cases that users derive theirs from."""

import os
import unittest
from unittest import mock

import pytest

from accel.test_utils.cases import (
    AccelerateTestCase,
    MockingTestCase,
    TempDirTestCase,
    assert_exception,
    capture_call_output,
)
from accel_state import AcceleratorState, PartialState


def run(tests: type[unittest.TestCase]) -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(tests).run(result)
    assert result.testsRun > 0
    assert not result.errors + result.failures


@pytest.mark.parametrize(("is_cleared", "found"), [(True, [[], []]), (False, [[], ["file", "folder"]])])
def test_the_folder_is_shared_emptied_if_wanted_and_removed(is_cleared, found):
    seen = []

    class Tests(TempDirTestCase):
        clear_on_setup = is_cleared

        def test_1(self):
            seen.append(sorted(path.name for path in self.tmpdir.iterdir()))
            (self.tmpdir / "folder").mkdir(exist_ok=True)
            (self.tmpdir / "file").touch()

        test_2 = test_1

    run(Tests)
    assert seen == found
    assert not Tests.tmpdir.exists()


def test_the_state_is_forgotten_after_each_test():
    class Tests(AccelerateTestCase):
        def test_state(self):
            AcceleratorState(cpu=True, mixed_precision="bf16")
            assert PartialState().initialized

    run(Tests)
    assert not PartialState._shared_state
    assert not AcceleratorState._shared_state


def test_patches_end_with_the_test():
    class Tests(MockingTestCase):
        def setUp(self):
            super().setUp()
            self.add_mocks(mock.patch.dict(os.environ, {"WORD_OF_A_TEST": "1"}))
            self.add_mocks([mock.patch.dict(os.environ, {"ANOTHER_WORD": "2"})])

        def test_words(self):
            assert os.environ["WORD_OF_A_TEST"] + os.environ["ANOTHER_WORD"] == "12"

    run(Tests)
    assert not {"WORD_OF_A_TEST", "ANOTHER_WORD"} & set(os.environ)


def fail() -> None:
    raise ValueError("a broken part")


def test_an_expected_exception_passes_and_any_other_end_fails():
    with assert_exception(ValueError, "broken"):
        fail()
    with (
        pytest.raises(AssertionError, match="Expected `whole` in the message"),
        assert_exception(ValueError, "whole"),
    ):
        fail()
    with (
        pytest.raises(AssertionError, match="Expected ValueError, but nothing"),
        assert_exception(ValueError),
    ):
        pass
    with pytest.raises(ValueError, match="broken"), assert_exception(TypeError):
        fail()


def test_what_a_function_prints_is_returned(capsys):
    assert capture_call_output(print, "a", "b", sep="-") == "a-b\n"
    assert capsys.readouterr().out == ""
