import inspect
from types import SimpleNamespace

import pytest

from accel_state.delegation import delegated


class Face:
    speed: int = delegated("engine.speed")
    """The speed of
    the engine."""

    names: tuple[str, ...] = delegated("engine.names", convert=tuple)
    parts: list[str] = delegated("engine.parts", replaces_items=True)
    nickname: str = delegated("_nickname")

    def __init__(self):
        self.engine = SimpleNamespace(speed=1, names=(), parts=["a"])


def test_what_is_assigned_is_the_owners():
    face = Face()
    face.speed += 1
    assert (face.speed, face.engine.speed) == (2, 2)
    face.nickname = "f"
    assert (face.nickname, face._nickname) == ("f", "f")


def test_an_assigned_value_may_be_converted():
    face = Face()
    face.names = ["a", "b"]
    assert face.engine.names == ("a", "b")


def test_a_list_that_others_hold_stays_the_same_list():
    face = Face()
    held = face.engine.parts
    face.parts = ["b", "c"]
    assert held == ["b", "c"]
    assert face.parts is held


def test_what_the_owner_does_not_have_is_an_attribute_error():
    face = Face()
    del face.engine
    with pytest.raises(AttributeError, match="engine"):
        face.speed


def test_help_shows_the_string_below_the_assignment():
    assert inspect.getdoc(Face.speed) == "The speed of\nthe engine."
    assert not inspect.getdoc(Face.nickname)


def test_without_the_source_there_is_no_documentation():
    class_without_source = type("Made", (), {"speed": delegated("engine.speed")})
    assert not inspect.getdoc(class_without_source.speed)
