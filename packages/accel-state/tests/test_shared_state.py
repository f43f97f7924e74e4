"""The dict that a state class shows."""

from accel_state.shared_state import SharedState


def test_dict_is_collected_anew_at_every_look():
    values = {}

    class Sample:
        _shared_state = SharedState(lambda: dict(values))

    assert Sample._shared_state == {}
    values["a"] = 1
    assert Sample._shared_state == Sample()._shared_state == {"a": 1}
    Sample._shared_state["b"] = 2
    assert Sample._shared_state == {"a": 1}
