"""Checkpoints that the Accelerator keeps."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from accel import Accelerator, ProjectConfiguration, Retention
from accel_state.errors import ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_the_best_checkpoints_are_kept_next_to_the_newest(tmp_path):
    retention = Retention(newest=1, best=2, metric="loss")
    project = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, retention=retention)
    accelerator = Accelerator(cpu=True, project_config=project)
    accelerator.prepare(nn.Linear(2, 2))
    for loss in (3.0, 1.0, torch.tensor(2.0), 5.0, 4.0):
        accelerator.save_state(metrics={"loss": loss})
    assert names(tmp_path) == ["checkpoint_1", "checkpoint_2", "checkpoint_4"]
    manifest = json.loads((tmp_path / "checkpoints" / "checkpoint_2" / "accel_checkpoint.json").read_text())
    assert manifest["metrics"] == {"loss": 2.0}


def test_a_checkpoint_that_is_named_has_metrics_too(tmp_path):
    accelerator = Accelerator(cpu=True)
    accelerator.save_state(tmp_path / "a", metrics={"accuracy": 0.5})
    assert json.loads((tmp_path / "a" / "accel_checkpoint.json").read_text())["metrics"] == {"accuracy": 0.5}
    with pytest.raises(ConfigError, match="`metrics` needs one number for `accuracy`"):
        accelerator.save_state(tmp_path / "b", metrics={"accuracy": "high"})


def metrics_of_rank_0(folder, loss, other_loss):
    accelerator = Accelerator(cpu=True)
    loss = loss if accelerator.is_main_process else other_loss
    try:
        accelerator.save_state(folder, metrics={"loss": loss})
    except ConfigError:
        accelerator.save_state(folder, metrics={"loss": 5.0})
    return json.loads((Path(folder) / "accel_checkpoint.json").read_text())["metrics"]


@pytest.mark.parametrize(("loss", "other_loss", "saved"), [(2.0, None, 2.0), (None, 2.0, 5.0)])
def test_the_metrics_of_rank_0_count_and_an_error_in_them_holds_up_no_rank(
    world, tmp_path, loss, other_loss, saved
):
    outcome = world(2).run(metrics_of_rank_0, str(tmp_path / "a"), loss, other_loss)
    assert outcome == [{"loss": saved}] * 2


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"total_limit": 2, "automatic_checkpoint_naming": True}, "both set the number"),
        ({}, "`retention` is for numbered checkpoints"),
    ],
)
def test_a_retention_that_would_have_no_effect_is_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        ProjectConfiguration("a", retention=Retention(newest=1), **settings)
