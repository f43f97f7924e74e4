from __future__ import annotations

import warnings

import pytest
import torch

from accel_trackers import BackgroundLog, TensorBoardTracker

pytest.importorskip("tensorboard", reason="needs the extra accel-trackers[tensorboard]")
yaml = pytest.importorskip("yaml", reason="needs the extra accel-trackers[tensorboard]")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from tensorboard.plugins.hparams import plugin_data_pb2  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_state")


@pytest.fixture
def tracker(tmp_path):
    tracker = TensorBoardTracker("run", tmp_path, flush_secs=3600)
    tracker.start()
    yield tracker
    tracker.finish()


def read(folder) -> EventAccumulator:
    return EventAccumulator(
        str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": 0, "histograms": 0}
    ).Reload()


def scalars(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_scalars_are_in_the_file_when_log_returns(tracker, tmp_path):
    for step in range(3):
        tracker.log({"loss": 1.0 / (step + 1), "tensor": torch.tensor(step), "flag": True}, step=step)
    events = read(tmp_path / "run")
    assert scalars(events, "loss") == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert scalars(events, "tensor") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert scalars(events, "flag") == [(0, 1.0), (1, 1.0), (2, 1.0)]


def test_a_step_is_optional(tracker, tmp_path):
    tracker.log({"loss": 2.0})
    assert scalars(read(tmp_path / "run"), "loss") == [(0, 2.0)]


def test_text_is_logged_as_text(tracker, tmp_path):
    tracker.log({"note": "all is well"}, step=4)
    (event,) = read(tmp_path / "run").Tensors("note/text_summary")
    assert event.step == 4
    assert event.tensor_proto.string_val == [b"all is well"]


def test_a_dict_of_numbers_is_a_group_of_scalars(tracker, tmp_path):
    tracker.log({"loss": {"train": 1.0, "test": torch.tensor(2.0)}}, step=7)
    assert scalars(read(tmp_path / "run" / "loss_train"), "loss") == [(7, 1.0)]
    assert scalars(read(tmp_path / "run" / "loss_test"), "loss") == [(7, 2.0)]


def test_more_arguments_reach_the_writer(tracker, tmp_path):
    tracker.log({"loss": 1.0}, step=1, walltime=123.0)
    assert read(tmp_path / "run").Scalars("loss")[0].wall_time == 123.0


def test_what_tensorboard_cannot_show_is_named_once_and_the_rest_logged(tracker, tmp_path):
    with pytest.warns(UserWarning, match="skips `many`: .*not Tensor"):
        tracker.log({"many": torch.ones(3), "loss": 1.0}, step=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracker.log({"many": torch.ones(3), "loss": 2.0}, step=1)
    assert scalars(read(tmp_path / "run"), "loss") == [(0, 1.0), (1, 2.0)]


def test_images_are_logged_in_the_layout_given(tracker, tmp_path):
    tracker.log_images({"digits": torch.rand(2, 1, 8, 6)}, step=3)
    tracker.log_images({"last": torch.rand(1, 8, 6, 3).numpy()}, step=3, dataformats="NHWC")
    events = read(tmp_path / "run")
    (image,) = events.Images("last")
    assert (image.step, image.height, image.width) == (3, 8, 6)
    assert events.Images("digits")[0].step == 3


def test_figures_are_images_whatever_way_they_are_logged(tracker, tmp_path):
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure(figsize=(1, 2), dpi=20)
    tracker.log({"direct": figure}, step=1)
    tracker.log_figures({"named": figure}, step=2)
    log = BackgroundLog([tracker])
    log.log({"queued": figure}, step=3)
    log.close()
    events = read(tmp_path / "run")
    for name, step in (("direct", 1), ("named", 2), ("queued", 3)):
        (image,) = events.Images(name)
        assert (image.step, image.width, image.height) == (step, 20, 40)


def test_histograms_are_distributions(tracker, tmp_path):
    tracker.log_histograms({"weights": torch.tensor([0.0, 1.0, 1.0], dtype=torch.bfloat16)}, step=3)
    (event,) = read(tmp_path / "run").Histograms("weights")
    assert (event.step, event.histogram_value.num, event.histogram_value.sum) == (3, 3.0, 2.0)


def test_the_configuration_may_be_stored_before_the_start(tmp_path):
    tracker = TensorBoardTracker("run", tmp_path)
    tracker.store_init_configuration({"lr": 0.1})
    tracker.finish()
    assert yaml.safe_load((tmp_path / "run" / "hparams.yml").read_text()) == {"lr": 0.1}


def test_the_configuration_is_in_the_yaml_file_and_on_the_page(tracker, tmp_path):
    config = {
        "lr": 1e-5,
        "layers": [1, 2],
        "name": "x",
        "deep": {"a": torch.tensor(1.5)},
        "flag": True,
        "none": None,
    }
    tracker.store_init_configuration(config)
    stored = yaml.safe_load((tmp_path / "run" / "hparams.yml").read_text())
    assert stored == {**config, "deep": {"a": 1.5}}
    assert list(stored) == list(config)
    content = read(tmp_path / "run").SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    shown = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert shown["lr"].number_value == 1e-5
    assert set(shown) == {*config, "deep/a"} - {"deep"}
    assert shown["deep/a"].number_value == 1.5
    assert shown["name"].string_value == "x"
    assert shown["layers"].string_value == "[1, 2]"


def test_tracker_is_the_writer_and_starts_it_by_default(tmp_path):
    tracker = TensorBoardTracker("run", tmp_path)
    tracker.tracker.add_scalar("own", 1.5, 2)
    writer = tracker.tracker
    tracker.start()
    assert tracker.tracker is writer
    tracker.finish()
    assert scalars(read(tmp_path / "run"), "own") == [(2, 1.5)]


def test_finish_without_a_start_is_fine(tmp_path):
    TensorBoardTracker("run", tmp_path).finish()
    assert list(tmp_path.iterdir()) == []
