import json

import pytest

from accel_checkpoint.ranks.agreement import DeferredError, ReplacedError
from accel_state.errors import CheckpointError

OTHERS = {
    "well": json.dumps(["of another", "", False]),
    "failed": json.dumps(["of another", "OSError: full", False]),
    "replaced": json.dumps(["of another", "", True]),
}


def deferred(*reports):
    """Return a deferred error whose other ranks report ``reports``; None stands for this rank."""

    def agree(topic, report, merge):
        return merge([report if one is None else one for one in reports])

    return DeferredError(agree, "checked", failed="Nothing was loaded")


def test_the_value_is_that_of_rank_0():
    with deferred(None, OTHERS["well"]) as here:
        pass
    assert here.agree("of rank 0") == "of rank 0"
    with deferred(OTHERS["well"], None) as there:
        pass
    assert there.agree("of rank 1") == "of another"


def test_values_are_merged_unless_a_rank_failed():
    with deferred(None, OTHERS["well"]) as one:
        pass
    assert one.agree("of rank 0", ", ".join) == "of rank 0, of another"
    with deferred(OTHERS["failed"], None) as other:
        pass
    with pytest.raises(CheckpointError, match="rank 0: OSError: full"):
        other.agree("", int)


def test_the_ranks_that_failed_are_named_on_those_that_did_not():
    with deferred(None, OTHERS["failed"], OTHERS["well"], OTHERS["failed"]) as one:
        pass
    with pytest.raises(
        CheckpointError, match=r"^Nothing was loaded \(rank 1: OSError: full; rank 3: OSError: full\)\.$"
    ):
        one.agree()


def test_a_rank_that_failed_reports_its_error_and_then_raises_it():
    reported = []

    def agree(topic, report, merge):
        reported.append((topic, json.loads(report)))
        return merge([report])

    with DeferredError(agree, "checked", failed="Nothing was loaded") as one:
        raise KeyError("a")
    with pytest.raises(KeyError):
        one.agree()
    assert reported == [("checked", ["", "KeyError: 'a'", False])]


def test_a_replaced_checkpoint_is_reported_on_every_rank_before_other_errors():
    with deferred(None, OTHERS["failed"], OTHERS["replaced"]) as here:
        raise KeyError("a")
    with pytest.raises(
        ReplacedError, match="^Nothing was loaded, since another save replaces it. Load a checkpoint"
    ):
        here.agree()
    with deferred(OTHERS["failed"], None) as there:
        pass
    with pytest.raises(ReplacedError):
        there.agree(is_replaced=True)


def test_an_interruption_is_not_deferred():
    with pytest.raises(KeyboardInterrupt), deferred(None):
        raise KeyboardInterrupt
