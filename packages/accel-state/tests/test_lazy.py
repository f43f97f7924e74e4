from __future__ import annotations

import importlib
import sys
import types

import pytest

from accel_state.lazy import attach


@pytest.fixture
def face():
    """A package face that hands on names of the standard library."""
    module = types.ModuleType("face_of_a_test")
    sys.modules[module.__name__] = module
    module.__getattr__, module.__dir__, module.__all__ = attach(
        module.__name__,
        {"fraction": "fractions:Fraction", "sqrt": "math", "from_bytes": "builtins:int.from_bytes"},
    )
    yield module
    del sys.modules[module.__name__]


def test_names_are_found_where_the_table_says(face):
    import fractions
    import math

    assert face.fraction is fractions.Fraction
    assert face.sqrt is math.sqrt
    assert face.from_bytes(b"\x01\x00", "big") == 256


def test_all_is_sorted_and_dir_contains_it(face):
    assert face.__all__ == ["fraction", "from_bytes", "sqrt"]
    assert set(face.__all__) <= set(dir(face))


def test_a_name_is_an_ordinary_attribute_after_its_first_use(face):
    assert "sqrt" not in vars(face)
    face.sqrt(4)
    assert "sqrt" in vars(face)


def test_an_unknown_name_is_an_attribute_error_that_names_the_package(face):
    with pytest.raises(AttributeError, match="module `face_of_a_test` has no attribute `nothing`"):
        _ = face.nothing
    assert not hasattr(face, "__wrapped__")


def test_a_submodule_is_imported_when_it_is_first_used_and_is_no_public_name(tmp_path, monkeypatch):
    package = tmp_path / "lazy_package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from accel_state.lazy import attach\n"
        "__getattr__, __dir__, __all__ = attach(__name__, {}, submodules=['below', 'missing'])\n"
    )
    (package / "below.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.import_module(package.name)
    try:
        assert "below" in dir(found)
        assert found.__all__ == []
        assert f"{package.name}.below" not in sys.modules
        assert found.below is sys.modules[f"{package.name}.below"]
        with pytest.raises(ModuleNotFoundError, match=rf"{package.name}\.missing"):
            _ = found.missing
    finally:
        for name in [name for name in sys.modules if name.startswith(package.name)]:
            del sys.modules[name]


STUB = """
from fractions import Fraction as Part
from math import (
    sqrt as sqrt,
)
from stub_package_of_a_test import below as below

__version__: str
from_float = Part.from_float
"""


def test_a_stub_says_where_names_are(tmp_path, monkeypatch):
    package = tmp_path / "stub_package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from accel_state.lazy import attach_stub\n__getattr__, __dir__, __all__ = attach_stub(__name__)\n"
    )
    (package / "__init__.pyi").write_text(STUB)
    (package / "below.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.import_module(package.name)
    try:
        import fractions

        assert found.__all__ == ["Part", "from_float", "sqrt"]
        assert found.Part is fractions.Fraction
        assert found.from_float(0.5) == fractions.Fraction(1, 2)
        assert found.sqrt(4) == 2
        assert found.below is sys.modules[f"{package.name}.below"]
    finally:
        for name in [name for name in sys.modules if name.startswith(package.name)]:
            del sys.modules[name]
