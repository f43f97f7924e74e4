import json
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accel import Accelerator
from accel_data import DataLoaderConfiguration
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")
UNUSED = "`optimizer.bin`, `scheduler.bin`, `custom_checkpoint_0.pkl`, `dl_state_dict.bin`"


class Meter:
    def __init__(self):
        self.total = 0

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


def build(*, width=3, optimizer=torch.optim.Adam, scheduler="StepLR", precision="no", custom=1, loaders=1):
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    model = nn.Linear(width, 2)
    parts = [model]
    if optimizer is not None:
        inner = optimizer(model.parameters(), lr=0.1)
        parts.append(inner)
        if scheduler == "StepLR":
            parts.append(torch.optim.lr_scheduler.StepLR(inner, 1))
        elif scheduler == "OneCycleLR":
            parts.append(torch.optim.lr_scheduler.OneCycleLR(inner, 0.1, total_steps=9))
    parts += [DataLoader(torch.arange(4)) for _ in range(loaders)]
    accelerator.held = accelerator.prepare(*parts)  # a run lets go of loaders that nobody holds
    accelerator.register_for_checkpointing(*(Meter() for _ in range(custom)))
    accelerator.backward(model(torch.ones(1, width)).sum())
    for one in accelerator._optimizers:
        one.step()
    return accelerator


def change_of(folder, *, save=None, load=None):
    saver = build(**(save or {}))
    saver.save_state(folder)
    saver_type = type(saver.state)
    saver_type._reset_state(reset_partial_state=True)
    return build(**(load or {}))


@pytest.mark.parametrize(
    ("save", "load", "match"),
    [
        (
            {},
            {"optimizer": torch.optim.SGD},
            r"`optimizer.bin` does not fit optimizer 0 \(SGD\): it was saved from a `torch.optim.adam.Adam`",
        ),
        (
            {},
            {"width": 4},
            r"`model.safetensors` does not fit model 0 \(Linear\): `weight` has the shape \(2, 3\) instead of \(2, 4\)",
        ),
        (
            {"optimizer": None},
            {"width": 4, "optimizer": None},
            r"`model.safetensors` does not fit model 0 \(Linear\): `weight` has the shape \(2, 3\) instead of \(2, 4\)",
        ),
        ({"scheduler": None}, {}, "`scheduler.bin`, the state of scheduler 0, is missing"),
        (
            {},
            {"scheduler": "OneCycleLR"},
            r"`scheduler.bin` does not fit scheduler 0 \(OneCycleLR\): it was saved from a .*StepLR",
        ),
        ({}, {"custom": 2}, "`custom_checkpoint_1.pkl`, the state of custom object 1, is missing"),
        ({}, {"precision": "fp16"}, "`scaler.pt` is missing"),
        ({"optimizer": None, "scheduler": None}, {}, "`optimizer.bin`, the state of optimizer 0, is missing"),
    ],
)
def test_a_mismatch_names_file_and_object_and_may_be_a_warning(tmp_path, save, load, match):
    accelerator = change_of(tmp_path / "a", save=save, load=load)
    with pytest.raises(CheckpointError, match=match):
        accelerator.load_state(tmp_path / "a")
    with pytest.warns(UserWarning, match=match):
        accelerator.load_state(tmp_path / "a", strict=False)


@pytest.mark.parametrize(
    ("save", "load", "unused"),
    [
        ({}, {"optimizer": None, "scheduler": None, "custom": 0, "loaders": 0}, UNUSED),
        ({"custom": 2, "precision": "fp16"}, {}, "`custom_checkpoint_1.pkl`, `scaler.pt`"),
        ({"loaders": 3}, {}, "`dl_state_dict_1.bin`, `dl_state_dict_2.bin`"),
    ],
)
def test_an_evaluation_loads_what_it_has_prepared_and_warns_once_of_the_rest(tmp_path, save, load, unused):
    accelerator = change_of(tmp_path / "a", save=save, load=load)
    with torch.no_grad():
        accelerator._models[0].weight.zero_()
    expected = f"which are not loaded: {unused}. To continue the training, prepare and register the same"
    with pytest.warns(UserWarning, match="not loaded") as shown:
        accelerator.load_state(tmp_path / "a")
    assert accelerator._models[0].weight.any()
    assert [expected in str(one.message) for one in shown if "prepared" in str(one.message)] == [True]


@pytest.mark.parametrize("restore", [True, False])
def test_a_run_that_has_gained_a_loader_resumes(tmp_path, caplog, restore):
    accelerator = change_of(tmp_path / "a", load={"loaders": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accelerator.load_state(tmp_path / "a", restore_loaders=restore)
    assert "The checkpoint has no state of loader 1" in caplog.text


def test_a_loader_that_is_gone_does_not_give_its_number_to_another(tmp_path):
    """Whether the first loader is collected already, as it is not in a reference cycle, makes no difference."""
    accelerator = Accelerator(cpu=True)
    first, second = (accelerator.prepare(DataLoader(torch.arange(n), shuffle=True)) for n in (4, 6))
    del first
    read = []
    for batch in second:
        read.append(batch.item())
        if len(read) == 2:
            accelerator.save_state(tmp_path / "a")
    type(accelerator.state)._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True)
    first, second = (accelerator.prepare(DataLoader(torch.arange(n), shuffle=True)) for n in (4, 6))
    accelerator.load_state(tmp_path / "a", restore_loaders=True)
    assert len(list(first)) == 4
    assert [batch.item() for batch in second] == read[2:]


def test_missing_random_states_are_an_error_that_strict_false_lets_pass(tmp_path):
    accelerator = change_of(tmp_path / "a")
    (tmp_path / "a" / "random_states_0.pkl").unlink()
    path = tmp_path / "a" / "accel_checkpoint.json"
    content = json.loads(path.read_text())
    del content["seal"]
    content["files"] = [entry for entry in content["files"] if entry["name"] != "random_states_0.pkl"]
    path.write_text(json.dumps(content))
    with pytest.raises(
        CheckpointError, match=r"`random_states_0.pkl`, the random states of rank 0, is missing"
    ):
        accelerator.load_state(tmp_path / "a")
    with pytest.warns(UserWarning, match=r"random_states_0.pkl"):
        accelerator.load_state(tmp_path / "a", strict=False)


def test_mismatches_are_reported_before_anything_changes(tmp_path):
    accelerator = change_of(tmp_path / "a", load={"custom": 2})
    before = accelerator._models[0].weight.clone()
    with pytest.raises(CheckpointError):
        accelerator.load_state(tmp_path / "a")
    assert torch.equal(accelerator._models[0].weight, before)


def test_an_optimizer_owns_what_it_loaded(tmp_path):
    """Its tensors must not lie in the file, which may be removed or cut while it trains."""
    accelerator = change_of(tmp_path / "a")
    accelerator.load_state(tmp_path / "a")
    path = tmp_path / "a" / "optimizer.bin"
    with path.open("r+b") as file:
        file.truncate(0)
    moments = accelerator._optimizers[0].state_dict()["state"][0]
    assert moments["exp_avg"].isfinite().all()
    accelerator._optimizers[0].step()


def test_an_optimizer_that_has_moments_gets_the_loaded_ones_into_their_memory(tmp_path):
    """Loading a second time must not take the memory of a second set."""
    accelerator = change_of(tmp_path / "a")
    accelerator.load_state(tmp_path / "a")
    optimizer = accelerator._optimizers[0]
    moments = next(iter(optimizer.state.values()))["exp_avg"]
    good = moments.clone()
    moments.fill_(9)
    accelerator.load_state(tmp_path / "a")
    assert next(iter(optimizer.state.values()))["exp_avg"].data_ptr() == moments.data_ptr()
    assert torch.equal(moments, good)


def test_a_folder_without_its_manifest_is_refused_and_the_newest_good_one_named(tmp_path):
    accelerator = build()
    accelerator.save_state(tmp_path / "checkpoint_0")
    accelerator.save_state(tmp_path / "checkpoint_1")
    (tmp_path / "checkpoint_1" / "accel_checkpoint.json").unlink()
    with pytest.raises(
        CheckpointError, match="incomplete.*newest complete one next to it is `.*checkpoint_0`"
    ):
        accelerator.load_state(tmp_path / "checkpoint_1")


def test_the_folder_around_checkpoints_is_rejected_with_the_newest_in_it(tmp_path):
    build().save_state(tmp_path / "project" / "checkpoints" / "checkpoint_3")
    build().save_state(tmp_path / "beside")
    for folder in (tmp_path / "project", tmp_path / "project" / "checkpoints"):
        with pytest.raises(
            CheckpointError, match=r"has no checkpoint. The newest complete one in it is .*_3`"
        ):
            build().load_state(folder)


def test_a_missing_folder_is_reported_with_the_newest_good_one(tmp_path):
    accelerator = build()
    accelerator.save_state(tmp_path / "checkpoint_0")
    with pytest.raises(CheckpointError, match="There is no checkpoint `.*checkpoint_7`.*checkpoint_0`"):
        accelerator.load_state(tmp_path / "checkpoint_7")


def test_a_loader_left_early_starts_over_and_one_being_read_resumes(tmp_path):
    accelerator = build()
    [loader] = accelerator._dataloaders
    for _ in loader:
        break
    accelerator.save_state(tmp_path / "left")
    for batch in loader:
        if batch.item() == 1:
            accelerator.save_state(tmp_path / "reading")
            break
    accelerator.load_state(tmp_path / "left", restore_loaders=True)
    assert [batch.item() for batch in loader] == [0, 1, 2, 3]
    accelerator.load_state(tmp_path / "reading", restore_loaders=True)
    assert [batch.item() for batch in loader] == [2, 3]
    assert [batch.item() for batch in loader] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("config", "arguments", "read"),
    [
        ({}, {}, [0, 1, 2, 3]),
        ({}, {"restore_loaders": True}, [2, 3]),
        ({"use_stateful_dataloader": True}, {}, [2, 3]),
        ({"use_stateful_dataloader": True}, {"restore_loaders": False}, [0, 1, 2, 3]),
    ],
)
def test_a_loader_resumes_on_request(tmp_path, caplog, config, arguments, read):
    """A script that skips the first batches by itself must not skip twice."""
    if config:
        pytest.importorskip("torchdata", reason="needs the extra accel-data[torchdata]")
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))
    loader = accelerator.prepare(torch.utils.data.DataLoader(range(4)))
    for batch in loader:
        if batch.item() == 1:
            accelerator.save_state(tmp_path / "a")
            break
    accelerator.load_state(tmp_path / "a", **arguments)
    assert [batch.item() for batch in loader] == read
    assert ("in the middle of an epoch of loader 0" in caplog.text) == (len(read) == 4)


def test_a_save_after_a_loop_that_was_left_is_reported_once_where_loaders_resume(tmp_path, caplog):
    accelerator = build()
    [loader] = accelerator._dataloaders
    message = "no position in the epoch of loader 0: a loop was left early"

    def save_after_leaving(name):
        for _ in loader:
            break
        accelerator.save_state(tmp_path / name)

    save_after_leaving("not asked for")
    with accelerator.handle_preemption():
        for number, _ in enumerate(loader):
            accelerator.save_state(tmp_path / f"within {number}")
        accelerator.save_state(tmp_path / "between")
        assert message not in caplog.text
        save_after_leaving("a")
        save_after_leaving("b")
    assert caplog.text.count(message) == 1


def test_a_loader_resumes_if_preemption_is_handled(tmp_path):
    accelerator = build()
    [loader] = accelerator._dataloaders
    for batch in loader:
        if batch.item() == 1:
            accelerator.save_state(tmp_path / "a")
            break
    preemption = accelerator.handle_preemption()
    try:
        accelerator.load_state(tmp_path / "a")
        assert [batch.item() for batch in loader] == [2, 3]
    finally:
        preemption.close()
