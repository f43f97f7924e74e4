from __future__ import annotations

import subprocess
import sys

import pytest

from accel_state.availability import why_not
from accel_state.enums import LoggerType
from accel_state.errors import ConfigError, NotAvailableError, StateError
from accel_trackers import LOGGER_TYPE_TO_CLASS, ServiceTracker, filter_trackers
from accel_trackers.mlflow import MLflowTracker

SERVICES = ["aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "trackio", "wandb"]


class Fake(ServiceTracker):
    name = "fake"

    def __init__(self):
        super().__init__()
        self.calls = []

    def log(self, values, step=None, **kwargs):
        self.calls.append(self._supported(values))

    def _open(self):
        self.calls.append("opened")
        return "run"

    def _close(self, run):
        self.calls.append(f"closed {run}")


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_that_users_know_has_a_tracker_of_this_kind(name):
    cls = LOGGER_TYPE_TO_CLASS[LoggerType(name)]
    assert issubclass(cls, ServiceTracker)
    assert cls.name == name
    assert cls.__module__ == f"accel_trackers.{name}"
    assert cls.requires_logging_directory == (name == "aim")


def test_no_name_that_users_know_is_without_a_tracker():
    assert {member.value for member in LoggerType} - {"all"} <= set(LOGGER_TYPE_TO_CLASS)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_that_is_not_installed_is_refused_with_what_to_install(name, tmp_path):
    if why_not(name) is None:
        assert filter_trackers(name, tmp_path) == [name]
    else:
        with pytest.raises(NotAvailableError, match=rf"Run `pip install {name.replace('_', '-')}`"):
            filter_trackers(name, tmp_path)


def test_no_service_is_imported_before_its_run_is_opened():
    code = (
        "import sys; from accel_trackers import LOGGER_TYPE_TO_CLASS as known;"
        f"[known[name]('digits') for name in {SERVICES}];"
        f"print([name for name in {[*SERVICES, 'torch']} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True
    )
    assert done.stdout.strip() == "[]"


def use_all():
    from accel_state import PartialState

    if PartialState().is_main_process:
        return []
    for name in SERVICES:
        tracker = LOGGER_TYPE_TO_CLASS[name]("digits")
        tracker.start()
        tracker.store_init_configuration({"lr": 0.1})
        tracker.log({"loss": 1.0}, step=0)
        for more in ("log_images", "log_table", "log_artifact"):
            getattr(tracker, more, id)({})
        tracker.finish()
        with pytest.raises(
            StateError, match=f"`{name}` has a run on the main process only. .*`if PartialState"
        ):
            _ = tracker.tracker
    return [name for name in SERVICES if name in sys.modules]


def test_other_processes_than_the_main_one_neither_open_a_run_nor_import_a_service(world):
    assert world(2).run(use_all) == [[], []]


def test_a_run_is_opened_once_and_closed_once(fresh_state):
    fake = Fake()
    fake.start()
    fake.start()
    assert fake.tracker == "run"
    fake.finish()
    fake.finish()
    assert fake.calls == ["opened", "closed run"]


def test_a_run_that_was_never_opened_is_not_opened_to_be_closed(fresh_state):
    fake = Fake()
    fake.finish()
    assert fake.calls == []


def test_a_finished_run_is_not_silently_opened_again(fresh_state):
    fake = Fake()
    fake.start()
    fake.finish()
    with pytest.raises(StateError, match="The run of the tracker `fake` is finished. Start a new one"):
        fake.start()


def test_what_is_no_number_is_named_once(fresh_state, recwarn):
    fake = Fake()
    fake.log({"loss": 1, "note": "fine"})
    fake.log({"note": "fine", "other": None})
    assert fake.calls == [{"loss": 1}, {}]
    said = [str(warning.message) for warning in recwarn]
    assert [text.split(":")[0] for text in said] == [
        "The tracker `fake` skips `note`",
        "The tracker `fake` skips `other`",
    ]


def test_tags_of_mlflow_may_be_json_and_nothing_else():
    assert MLflowTracker(tags='{"team": "blue"}').tags == MLflowTracker(tags={"team": "blue"}).tags
    with pytest.raises(ConfigError, match="`tags` is no valid JSON"):
        MLflowTracker(tags="team=blue")
    with pytest.raises(ConfigError, match=r"`tags` must be a dict, or one as JSON, got \[1\]"):
        MLflowTracker(tags="[1]")


@pytest.mark.parametrize("name", ["swanlab", "trackio", "wandb"])
def test_runs_of_each_rank_need_a_group(name):
    with pytest.raises(ConfigError, match=f"creates a {name} run for each rank. Pass `group` too"):
        LOGGER_TYPE_TO_CLASS[name]("digits", main_process_only=False)
