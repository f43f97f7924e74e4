from __future__ import annotations

import compileall
import importlib
import sys
import types
from pathlib import Path

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


def test_names_are_found_where_the_table_specifies(face):
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
    with pytest.raises(AttributeError, match="module `face_of_a_test` has no attribute `nothing`") as error:
        _ = face.nothing
    assert (error.value.obj, error.value.name) == (face, "nothing")  # for Python's "Did you mean"
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
import math
from fractions import Fraction as Fraction
from math import (
    sqrt as sqrt,
)
from stub_package_of_a_test import below as below

__version__: str
from_float = Fraction.from_float
_root = math.isqrt
ceiling = (
    math.ceil
)
"""


@pytest.fixture
def stubbed(tmp_path, monkeypatch):
    """A package and a module in it, each with a stub."""
    package = tmp_path / "stub_package_of_a_test"
    package.mkdir()
    attach = (
        "from accel_state.lazy import attach_stub\n__getattr__, __dir__, __all__ = attach_stub(__name__{})\n"
    )
    (package / "__init__.py").write_text(attach.format(""))
    (package / "__init__.pyi").write_text(STUB)
    (package / "below.py").write_text(attach.format(""))
    (package / "below.pyi").write_text("from math import cos as cos\n")
    (package / "above.py").write_text(attach.format(""))
    (package / "above.pyi").write_text(
        "from math import tan as sqrt\nfrom stub_package_of_a_test import *\n"
        "from stub_package_of_a_test.below import *\n"
    )
    (package / "with_code.py").write_text(attach.format(', suffix="_names"') + "sin = 0\n")
    (package / "with_code_names.pyi").write_text("from math import sin as sin\nfrom math import tan as tan\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(package.name)
    for name in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[name]


def test_a_stub_names_where_names_are(stubbed):
    import fractions

    assert stubbed.__all__ == ["Fraction", "ceiling", "from_float", "sqrt"]
    assert stubbed.Fraction is fractions.Fraction
    assert stubbed.from_float(0.5) == fractions.Fraction(1, 2)
    assert stubbed.sqrt(4) == 2
    assert stubbed.ceiling(1.5) == 2
    assert stubbed.below is sys.modules[f"{stubbed.__name__}.below"]


def test_stubs_are_read_where_the_sources_are_left_out(stubbed):
    folder = Path(stubbed.__file__).parent
    compileall.compile_dir(folder, legacy=True, quiet=1)
    (folder / "below.py").unlink()
    importlib.invalidate_caches()
    below = importlib.import_module(f"{stubbed.__name__}.below")
    assert below.__file__.endswith(".pyc")
    assert below.__all__ == ["cos"]


def test_a_name_with_an_underscore_can_be_imported_and_is_not_public(stubbed):
    assert stubbed._root(9) == 3
    assert "_root" not in stubbed.__all__


def test_a_module_has_a_stub_too(stubbed):
    assert stubbed.below.__all__ == ["cos"]
    assert stubbed.below.cos(0) == 1


def test_a_stub_has_the_public_names_of_others_and_its_own_count(stubbed):
    above = importlib.import_module(f"{stubbed.__name__}.above")
    assert above.__all__ == sorted(["cos", *stubbed.__all__])
    assert above.ceiling is stubbed.ceiling
    assert above.sqrt(0) == 0
    assert not hasattr(above, "_root")


def test_a_stub_of_another_name_leaves_the_code_of_the_module_to_type_checkers(stubbed):
    module = importlib.import_module(f"{stubbed.__name__}.with_code")
    assert module.sin == 0
    assert module.tan(0) == 0
