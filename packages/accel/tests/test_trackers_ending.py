import pytest

from accel.trackers import attempt_all


def test_every_step_is_taken_in_order_and_the_first_error_is_raised_with_the_others_as_notes():
    taken = []

    def step(name, error=None):
        def take():
            taken.append(name)
            if error is not None:
                raise error

        return take

    first = ValueError("the first")
    with pytest.raises(ValueError, match="the first") as caught:
        attempt_all([step(1), step(2, first), step(3, KeyboardInterrupt("the second")), step(4)])
    assert caught.value is first
    assert first.__notes__ == ["Afterwards: KeyboardInterrupt: the second"]
    assert taken == [1, 2, 3, 4]


def test_without_an_error_nothing_is_raised():
    attempt_all([])
