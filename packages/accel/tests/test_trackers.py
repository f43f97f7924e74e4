import json
import time

import pytest
import torch

from accel import Accelerator
from accel_state.errors import ConfigError
from accel_trackers import GeneralTracker, TrackerError, on_main_process

pytestmark = pytest.mark.usefixtures("fresh_state")


class Notebook(GeneralTracker):
    """A tracker that writes down what it is given."""

    name = "notebook"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.lines = []

    @property
    def tracker(self):
        return self.lines

    def store_init_configuration(self, values):
        self.lines.append(("config", values))

    def log(self, values, step=None, **kwargs):
        self.lines.append((step, values))

    def finish(self):
        self.lines.append("finished")


def test_a_tracker_receives_everything_in_order():
    notebook = Notebook()
    accelerator = Accelerator(cpu=True, log_with=notebook)
    accelerator.init_trackers("project", config={"lr": 0.1})
    for step in range(5):
        accelerator.log({"loss": torch.tensor(step / 2)}, step=step)
    assert accelerator.get_tracker("notebook", unwrap=True) is notebook.lines
    accelerator.end_training()
    assert notebook.lines == [
        ("config", {"lr": 0.1}),
        *((step, {"loss": step / 2}) for step in range(5)),
        "finished",
    ]


def test_a_logged_tensor_is_what_it_was_when_it_was_logged():
    notebook = Notebook()
    accelerator = Accelerator(cpu=True, log_with=[notebook])
    accelerator.init_trackers("project")
    value = torch.tensor(1.0)
    accelerator.log({"value": value}, step=0)
    value.fill_(7.0)
    accelerator.end_training()
    assert notebook.lines[0] == (0, {"value": 1.0})


def test_an_unknown_tracker_is_named():
    with pytest.raises(ConfigError, match="tensorbord"):
        Accelerator(cpu=True, log_with="tensorbord", project_dir="unused")


def test_a_tracker_that_was_not_started_is_an_error():
    accelerator = Accelerator(cpu=True, log_with=Notebook())
    accelerator.init_trackers("project")
    with pytest.raises(ConfigError, match="No tracker `wandb` was started. Started: notebook"):
        accelerator.get_tracker("wandb")
    accelerator.end_training()


def test_starting_twice_is_an_error():
    accelerator = Accelerator(cpu=True, log_with=Notebook())
    accelerator.init_trackers("project")
    with pytest.raises(ConfigError, match="started already"):
        accelerator.init_trackers("project")
    accelerator.end_training()


def test_other_trackers_may_be_chosen_before_the_start():
    accelerator, notebook = Accelerator(cpu=True), Notebook()
    accelerator.log_with = [notebook]
    assert accelerator.log_with == [notebook]
    with pytest.raises(ConfigError, match="tensorbord"):
        accelerator.log_with = ["tensorbord"]
    accelerator.init_trackers("project")
    assert accelerator.trackers == [notebook]
    accelerator.end_training()


def test_log_without_trackers_does_nothing():
    Accelerator(cpu=True).log({"loss": 1.0}, step=0)


def log_lines(folder):
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=folder)
    accelerator.init_trackers("project")
    accelerator.log({"rank": accelerator.process_index}, step=3)
    for tracker in accelerator.trackers:
        assert isinstance(tracker, GeneralTracker)
    accelerator.end_training()


def test_only_the_main_process_logs(world, tmp_path):
    world(2).run(log_lines, str(tmp_path))
    lines = [json.loads(line) for file in tmp_path.rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert [(line["step"], line["values"]) for line in lines] == [(3, {"rank": 0})]


class Broken(Notebook):
    name = "broken"

    def log(self, values, step=None, **kwargs):
        raise OSError("no space left")


def test_a_tracker_that_failed_is_reported_after_all_are_closed():
    notebook = Notebook()
    accelerator = Accelerator(cpu=True, log_with=[Broken(), notebook])
    accelerator.init_trackers("project")
    with pytest.warns(UserWarning, match="`broken` failed to log step 4"):
        accelerator.log({"loss": 1.0}, step=4)
    with pytest.raises(TrackerError, match="`broken` failed to log step 4: OSError: no space left"):
        accelerator.end_training()
    assert notebook.lines == [(4, {"loss": 1.0}), "finished"]


def test_a_tracker_that_failed_is_raised_by_the_next_log_where_that_is_requested():
    accelerator = Accelerator(cpu=True, log_with=Broken())
    accelerator.init_trackers("project", on_error="raise")
    with pytest.raises(TrackerError, match="`broken` failed to log step 4"):
        accelerator.log({"loss": 1.0}, step=4)
    accelerator.end_training()


def test_another_word_for_on_error_is_refused_before_anything_is_started():
    notebook = Notebook()
    accelerator = Accelerator(cpu=True, log_with=notebook)
    with pytest.raises(ConfigError, match="`on_error` must be `warn` or `raise`, got `skip`"):
        accelerator.init_trackers("project", config={"lr": 0.1}, on_error="skip")
    assert notebook.lines == []


class Slow(Notebook):
    name = "slow"
    log_in_background = True

    def log(self, values, step=None, **kwargs):
        time.sleep(0.005)
        super().log(values, step)


@pytest.mark.parametrize(
    "taken",
    [
        lambda accelerator: accelerator.get_tracker("slow", unwrap=True),
        lambda accelerator: accelerator.get_tracker("slow").lines,
        lambda accelerator: accelerator.trackers[0].lines,
    ],
)
def test_all_calls_of_a_tracker_keep_one_order(taken):
    """wandb, for one, refuses a step before the last one."""
    notebook = Slow()
    accelerator = Accelerator(cpu=True, log_with=notebook)
    accelerator.init_trackers("project")
    for step in range(20):
        accelerator.log({"loss": torch.tensor(step / 2)}, step=step)
        if step == 5:
            lines = taken(accelerator)
        if step >= 5 and step % 3 == 0:
            lines.append((step, "image"))
    accelerator.end_training()
    steps = [line[0] for line in notebook.lines[:-1]]
    assert steps == sorted(steps)
    assert len(steps) == 25
    assert (19, {"loss": 9.5}) in notebook.lines


class WithImages(Notebook):
    """A tracker with a method that others have not."""

    name = "images"

    @on_main_process
    def log_images(self, values, step=None):
        self.lines.append((step, "images"))


def log_images_everywhere():
    tracker = WithImages()
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project")
    accelerator.get_tracker("images").log_images({}, step=1)
    run = accelerator.get_tracker("images", unwrap=True)
    if not accelerator.is_main_process:
        run.log({"a": 1})
        run.summary["best"] = run.config.lr
        with run.watch() as watch:
            watch.step()
    accelerator.end_training()
    return tracker.lines


def test_ranks_that_do_not_log_get_a_tracker_whose_methods_do_nothing(world):
    assert world(2).run(log_images_everywhere) == [[(1, "images"), "finished"], ["finished"]]
