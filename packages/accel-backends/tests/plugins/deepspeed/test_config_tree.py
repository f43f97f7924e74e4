from accel_backends.plugins.deepspeed.config_tree import (
    changes,
    has_key,
    leaves,
    set_value,
    unfill,
    value_of,
)

CONFIG = {"a": {"b": {"c": 1}, "d": None}, "e": "auto", "f": {}}


def test_keys_name_their_sections():
    assert value_of(CONFIG, "a.b.c") == 1
    assert value_of(CONFIG, "a.x.c", 5) == 5
    assert value_of(CONFIG, "e.x", 5) == 5
    assert (has_key(CONFIG, "a.d"), has_key(CONFIG, "a.x"), has_key(CONFIG, "e.x")) == (True, False, False)
    assert list(leaves(CONFIG)) == [("a.b.c", 1), ("a.d", None), ("e", "auto"), ("f", {})]


def test_a_key_is_set_with_its_sections():
    config = {}
    set_value(config, "a.b", 1)
    set_value(config, "a.c", 2)
    assert config == {"a": {"b": 1, "c": 2}}


def test_what_was_filled_can_be_taken_back_but_for_what_was_changed_since():
    before = {"a": {"b": "auto"}, "c": "auto", "d": 1}
    after = {"a": {"b": 2}, "c": 3, "d": 1, "e": 4}
    filled = changes(before, after)
    assert unfill(after, filled) == before
    assert unfill({**after, "c": 5, "a": {}}, filled) == {"a": {}, "c": 5, "d": 1}
