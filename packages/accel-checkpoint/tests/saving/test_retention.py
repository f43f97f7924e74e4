"""Which checkpoints a save removes."""

import warnings

import pytest
import torch

from accel_checkpoint import CheckpointFolder, Retention
from accel_state.errors import ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")
LOSSES = [5.0, 1.0, 4.0, 2.0, 1.0, 3.0, 6.0]


def left_after(folder, retention, *, losses=LOSSES, pinned=()):
    checkpoints = CheckpointFolder(folder, keep=retention)
    for step, loss in enumerate(losses):
        metrics = {} if loss is None else {"loss": loss}
        with checkpoints.save(step, metrics=metrics) as stage:
            stage.write("model.safetensors", {"weight": torch.zeros(2)})
        if step in pinned:
            (checkpoints.path / f"checkpoint_{step}" / "pinned").touch()
    return [one.step for one in checkpoints.checkpoints()]


@pytest.mark.parametrize(
    ("retention", "pinned", "left"),
    [
        (None, (), [0, 1, 2, 3, 4, 5, 6]),
        (2, (), [5, 6]),
        (Retention(newest=2), (), [5, 6]),
        (Retention(newest=1, every=3), (), [0, 3, 6]),
        (Retention(newest=1, best=1, metric="loss"), (), [4, 6]),  # of two equal ones the newer
        (Retention(newest=1, best=3, metric="loss"), (), [1, 3, 4, 6]),
        (Retention(newest=1, best=2, metric="loss", mode="max"), (), [0, 6]),
        (Retention(newest=2, best=1, metric="loss", every=4), (2,), [0, 2, 4, 5, 6]),
        (Retention(newest=1), (0, 5), [0, 5, 6]),
    ],
)
def test_each_rule_keeps_some(tmp_path, retention, pinned, left):
    assert left_after(tmp_path, retention, pinned=pinned) == left


def test_a_pin_that_is_taken_back_does_not_count(tmp_path):
    assert left_after(tmp_path, Retention(newest=1), pinned=(0,)) == [0, 6]
    (tmp_path / "checkpoint_0" / "pinned").unlink()
    with CheckpointFolder(tmp_path, keep=1).save(7) as stage:
        stage.write("model.safetensors", {"weight": torch.zeros(2)})
    assert [one.step for one in CheckpointFolder(tmp_path).checkpoints()] == [7]


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_checkpoint_without_a_finite_metric_is_none_of_the_best_and_reported(tmp_path, loss):
    retention = Retention(newest=1, best=1, metric="loss")
    with pytest.warns(UserWarning, match="no finite value of `loss`"):
        assert left_after(tmp_path, retention, losses=[3.0, loss, 4.0]) == [0, 2]


def test_metrics_are_recorded_as_numbers(tmp_path):
    checkpoints = CheckpointFolder(tmp_path)
    with checkpoints.save(1, metrics={"loss": torch.tensor(0.5), "epoch": 3}) as stage:
        stage.write("notes.json", {})
    assert checkpoints.newest().manifest.metrics == {"loss": 0.5, "epoch": 3.0}
    for value in ("low", None, torch.ones(2)):
        with pytest.raises(ConfigError, match="`metrics` needs one number for `loss`"):
            checkpoints.save(2, metrics={"loss": value})


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"newest": 0}, "`newest` must be a whole number of at least 1"),
        ({"newest": 1, "every": 2.5}, "`every` must be a whole number"),
        ({"newest": 1, "best": 1}, "`best` and `metric` belong together"),
        ({"newest": 1, "metric": "loss"}, "`best` and `metric` belong together"),
        (
            {"newest": 1, "best": 1, "metric": "loss", "mode": "low"},
            "`mode` must be `min` or `max`, got `low`",
        ),
        ({"every": 2}, "Set `newest` as well"),
    ],
)
def test_settings_without_sense_are_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        Retention(**settings)


def test_nothing_is_reported_about_the_best_without_such_a_rule(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert left_after(tmp_path, Retention(newest=1), losses=[None, None]) == [1]


@pytest.mark.parametrize(
    "metrics", [0.3, {"loss": 10**400}, {"loss": torch.ones(2)}, {"loss": "low"}], ids=str
)
def test_what_is_no_number_by_name_is_an_error(tmp_path, metrics):
    with pytest.raises(ConfigError, match="`metrics`"):
        CheckpointFolder(tmp_path).save(0, metrics=metrics)


def test_a_loss_with_its_graph_is_a_metric(tmp_path):
    checkpoints = CheckpointFolder(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with checkpoints.save(0, metrics={"loss": torch.ones((), requires_grad=True) * 2}):
            pass
    assert checkpoints.newest().manifest.metrics == {"loss": 2.0}
