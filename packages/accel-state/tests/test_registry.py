from __future__ import annotations

import sys

import pytest

from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError
from accel_state.registry import Registry


def install(folder, distribution, lines):
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[test.shapes]\n" + "\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed distributions: `shapes` with two members, one of which fails to import."""
    (tmp_path / "shapes_module.py").write_text("class Circle:\n    class Inner: ...\nround_one = Circle()\n")
    (tmp_path / "broken_module.py").write_text("import no_such_module_at_all\n")
    install(
        tmp_path,
        "shapes",
        [
            "circle = shapes_module:round_one",
            "inner = shapes_module:Circle.Inner",
            "broken = broken_module:Thing",
        ],
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("shapes_module", "broken_module"):
        sys.modules.pop(name, None)


@pytest.fixture
def shapes(site) -> Registry[object]:
    return Registry("shape", "test.shapes")


def test_names_are_sorted_and_nothing_is_imported(shapes):
    shapes.register("arc", object())
    assert shapes.names() == ["arc", "broken", "circle", "inner"]
    assert "circle" in shapes
    assert "square" not in shapes
    assert "shapes_module" not in sys.modules


def test_a_member_is_imported_when_it_is_requested(shapes):
    circle = shapes.get("circle")
    assert circle is sys.modules["shapes_module"].round_one
    assert shapes.get("circle") is circle
    assert shapes.get("inner") is type(circle).Inner


def test_an_unknown_name_is_answered_with_the_known_and_the_nearest(shapes):
    with pytest.raises(UnknownNameError) as caught:
        shapes.get("cirle")
    assert str(caught.value) == "Unknown shape `cirle`. Known: broken, circle, inner. Did you mean `circle`?"


def test_two_packages_that_own_one_name_are_both_named(shapes, site):
    install(site, "rival", ["circle = rival_module:Circle"])
    sys.path.append(str(site / "elsewhere"))  # what is installed is looked at again when the path changes
    try:
        assert shapes.names().count("circle") == 1
        with pytest.raises(ConfigError) as caught:
            shapes.get("circle")
    finally:
        sys.path.pop()
    assert "The shape `circle` is added by more than one installed package" in str(caught.value)
    assert "`rival` (rival_module:Circle)" in str(caught.value)
    assert "`shapes` (shapes_module:round_one)" in str(caught.value)


def test_a_member_whose_needs_are_missing_names_which(shapes):
    with pytest.raises(
        NotAvailableError, match="shape `broken` of `shapes`.*No module named 'no_such_module_at_all'"
    ):
        shapes.get("broken")


def test_an_entry_point_into_nothing_is_an_error_of_its_package(tmp_path, monkeypatch):
    (tmp_path / "hollow_module.py").write_text("")
    install(tmp_path, "hollow", ["ghost = hollow_module:Ghost"])
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigError, match="shape `ghost` of `hollow`.*module 'hollow_module' has no attribute 'Ghost'"
    ):
        Registry("shape", "test.shapes").get("ghost")


def test_items_gives_every_member(site):
    registry = Registry[object]("shape", "test.nothing_installed")
    registry.register("b", 2)
    registry.register("a", 1)
    assert registry.items() == [("a", 1), ("b", 2)]


def test_a_name_that_is_taken_is_refused_unless_replaced(shapes):
    shapes.register("arc", "first")
    shapes.register("arc", "first")
    for name in ("arc", "circle"):
        with pytest.raises(ConfigError, match=f"The shape `{name}` exists already"):
            shapes.register(name, "second")
    shapes.register("circle", "mine", replace=True)
    assert shapes.get("circle") == "mine"


def test_unregister_uncovers_the_installed_member_again(shapes):
    installed = shapes.get("circle")
    shapes.register("circle", "mine", replace=True)
    shapes.unregister("circle")
    assert shapes.get("circle") is installed
    with pytest.raises(UnknownNameError, match="Unknown registered shape `circle`"):
        shapes.unregister("circle")
