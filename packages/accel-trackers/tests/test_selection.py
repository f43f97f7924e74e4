from __future__ import annotations

import json
import warnings

import pytest

from accel_state.enums import LoggerType
from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError
from accel_trackers import (
    TRACKERS,
    GeneralTracker,
    IncompleteTrackerError,
    TensorBoardTracker,
    filter_trackers,
    get_available_trackers,
    register_tracker_class,
    start_trackers,
)


class Plain(GeneralTracker):
    name = "plain"
    requires_logging_directory = False

    def __init__(self, run_name, **kwargs):
        super().__init__()
        self.run_name, self.kwargs, self.calls = run_name, kwargs, []

    @property
    def tracker(self):
        return self

    def start(self):
        self.calls.append("start")

    def store_init_configuration(self, values):
        self.calls.append(values)


class Missing(Plain):
    name = "missing"

    @classmethod
    def why_not_available(cls):
        return "`moonlib` is not installed. Run `pip install moonlib`."


@pytest.fixture
def registered():
    for cls in (Plain, Missing):
        register_tracker_class(cls)
    yield
    for cls in (Plain, Missing):
        TRACKERS.unregister(cls.name)


def test_one_entry_and_a_list_mean_the_same(tmp_path):
    for log_with in ("jsonl", ["jsonl"], ("jsonl", "jsonl"), {"jsonl"}):
        chosen = filter_trackers(log_with, tmp_path)
        assert chosen == ["jsonl"]
        assert type(chosen[0]) is str
    assert filter_trackers(None) == filter_trackers([]) == []


def test_instances_and_names_keep_their_order_and_come_once(tmp_path, registered):
    mine, other = Plain("a"), Plain("b")
    assert filter_trackers([mine, "jsonl", other, mine, "plain"], tmp_path) == [
        mine,
        "jsonl",
        other,
        "plain",
    ]


def test_all_is_what_is_available_next_to_instances(tmp_path, registered):
    mine = Plain("a")
    chosen = filter_trackers([mine, "all"], tmp_path)
    assert chosen == [mine, *get_available_trackers()]
    assert {"jsonl", "plain"} <= set(chosen[1:])
    assert "missing" not in chosen


def test_all_without_a_folder_names_what_it_leaves_out(registered):
    with pytest.warns(UserWarning, match="skips .*jsonl.*: (it|each) requires a `logging_dir`"):
        chosen = filter_trackers(LoggerType.ALL)
    known = get_available_trackers()
    assert chosen == [name for name in known if not TRACKERS.get(name).requires_logging_directory]
    assert "plain" in chosen


def test_a_tracker_that_needs_a_folder_is_refused_without_one():
    with pytest.raises(
        ConfigError,
        match="Logging with `jsonl` requires a `logging_dir`: it writes to a folder. Pass `logging_dir=",
    ):
        filter_trackers("jsonl")


def test_members_of_the_enum_are_names(tmp_path):
    pytest.importorskip("tensorboard")
    chosen = filter_trackers([LoggerType.TENSORBOARD, "tensorboard"], tmp_path)
    assert chosen == ["tensorboard"]
    assert type(chosen[0]) is str


def test_an_unknown_name_is_refused_with_the_nearest_one(tmp_path):
    with pytest.raises(UnknownNameError, match="Unknown tracker `tensorbord`. .*Did you mean `tensorboard`"):
        filter_trackers("tensorbord", tmp_path)


def test_a_tracker_that_is_not_installed_is_refused_with_what_to_install(registered):
    with pytest.raises(NotAvailableError, match=r"pip install moonlib"):
        filter_trackers("missing")


def test_classes_and_other_things_are_refused():
    for wrong in (Plain, 3, {"tensorboard": {}}):
        with pytest.raises(ConfigError, match="`log_with` takes names and instances"):
            filter_trackers(wrong)


def test_an_instance_whose_init_skipped_the_check_is_checked_here():
    class Sloppy(GeneralTracker):
        name = "sloppy"

        def __init__(self):
            pass

    with pytest.raises(IncompleteTrackerError, match="`Sloppy` lacks"):
        filter_trackers(Sloppy())


def test_start_trackers_makes_starts_and_configures_in_this_order(registered):
    instance = Plain("own name")
    trackers = start_trackers(
        ["plain", instance], "run", config={"lr": 1}, init_kwargs={"plain": {"entity": "me"}}
    )
    assert trackers[1] is instance
    assert (trackers[0].run_name, trackers[0].kwargs) == ("run", {"entity": "me"})
    assert [tracker.calls for tracker in trackers] == [["start", {"lr": 1}]] * 2


def test_start_trackers_stores_no_configuration_where_none_is_given(registered):
    assert start_trackers(["plain"], "run")[0].calls == ["start"]


def test_start_trackers_gives_the_folder_to_those_that_need_it(tmp_path, fresh_state):
    pytest.importorskip("tensorboard")
    trackers = start_trackers(["jsonl", "tensorboard"], "run", logging_dir=tmp_path, config={"lr": 1})
    assert isinstance(trackers[1], TensorBoardTracker)
    for tracker in trackers:
        tracker.finish()
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"lr": 1}
    assert list((tmp_path / "run").glob("events.*"))


def test_arguments_for_a_tracker_that_is_not_there_are_refused(registered):
    with pytest.raises(
        UnknownNameError, match="Unknown tracker in `init_kwargs` `plaim`. .*Did you mean `plain`"
    ):
        start_trackers(["plain"], "run", init_kwargs={"plaim": {"a": 1}})


def test_naming_what_is_usable_warns_of_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filter_trackers("all", tmp_path)


@pytest.mark.parametrize("tracker", ["jsonl", "tensorboard"])
@pytest.mark.parametrize("name", ["../out", "a/../../out", "/abs"])
def test_a_name_of_a_run_that_leads_out_of_the_folder_is_refused(tmp_path, tracker, name):
    with pytest.raises(ConfigError, match="points outside the folder"):
        start_trackers([tracker], name, logging_dir=tmp_path / "logs")
    assert list(tmp_path.iterdir()) == []
    (inside,) = start_trackers(["jsonl"], "group/run", logging_dir=tmp_path)
    inside.finish()
    assert (tmp_path / "group" / "run" / "metrics.jsonl").is_file()
