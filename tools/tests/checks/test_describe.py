import enum
from collections import OrderedDict

from tools.checks.describe import describe, describe_members


class Shade(enum.StrEnum):
    __module__ = "accel_planted.shades"
    DARK = "dark"


DEFAULT = object()


def untyped(a, b=DEFAULT):
    return a


untyped.__module__ = "accel_planted.plain"


def test_members_of_an_enumeration_are_listed_with_their_values():
    assert list(describe("Shade", Shade, owner="accel_planted"))[:2] == [
        "class Shade(StrEnum)",
        "    DARK = 'dark'",
    ]


def test_a_name_handed_on_from_a_sibling_is_a_reference():
    assert list(describe("Colour", Shade, owner="accel")) == ["Colour = accel_planted.Shade"]


def test_addresses_in_defaults_are_left_out():
    assert list(describe("untyped", untyped, owner="accel_planted")) == ["def untyped(a, b=<object object>)"]


def test_members_inherited_from_strangers_are_left_out():
    cls = type("Box", (OrderedDict,), {"__module__": "accel_planted", "open": lambda self: None})
    assert list(describe_members(cls)) == ["def open(self)"]


def test_an_object_is_told_by_its_type_wherever_that_comes_from():
    thing = type("Registry", (), {"__module__": "accel_planted.registry"})()
    assert list(describe("THINGS", thing, owner="accel")) == ["THINGS: Registry"]
