"""Objects of libraries are not searched for garbage; those of tests are."""

import gc
import sys
import types
import weakref

import pytest

from tools.harness.imported_objects import ImportedObjects


class Knot:
    def __init__(self):
        self.itself = self


@pytest.fixture
def libraries():
    """An instance that has seen this process's modules; what a test freezes is unfrozen after it."""
    made = ImportedObjects()
    made.freeze()
    yield made
    gc.unfreeze()


def test_a_library_is_frozen_once(libraries, monkeypatch):
    for number in range(200):
        monkeypatch.setitem(sys.modules, f"a_library.{number}", types.ModuleType("part"))
    gc.unfreeze()
    libraries.freeze()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    libraries.freeze()
    assert gc.get_freeze_count() == 0


def test_garbage_is_collected_before_the_rest_is_frozen():
    gc.disable()
    try:
        knot = Knot()
        gone = weakref.ref(knot)
        del knot
        ImportedObjects().freeze()
        assert gone() is None
    finally:
        gc.enable()
        gc.unfreeze()


def test_what_comes_later_is_still_garbage(libraries):
    knot = Knot()
    gone = weakref.ref(knot)
    del knot
    gc.collect()
    assert gone() is None
