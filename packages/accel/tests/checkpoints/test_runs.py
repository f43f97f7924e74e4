"""Checkpoints inside an accumulation: it continues as if it had never been saved, or begins again and warns."""

import json
import logging
import shutil
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accel import Accelerator, DataLoaderConfiguration
from accel_checkpoint.file_names import MANIFEST_NAME, OWN_MARK
from accel_checkpoint.random_states import from_file
from accel_state.errors import CheckpointError
from tools.harness.vendor_modules import vendor_module

pytestmark = pytest.mark.usefixtures("fresh_state")

ITEMS = [3, 1, 4, 2]


class Run:
    """A model that accumulates over four micro-batches of unequal size, and checkpoints of it."""

    def __init__(self, num_steps=4):
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_steps)
        torch.manual_seed(0)
        self.model = nn.Linear(2, 1, dtype=torch.float64)
        self.model, self.optimizer = self.accelerator.prepare(
            self.model, torch.optim.SGD(self.model.parameters(), lr=0.1)
        )

    def train(self, micro_batches, *, weighted=True):
        for index in micro_batches:
            rows = torch.arange(2.0 * ITEMS[index], dtype=torch.float64).view(-1, 2) + index
            with self.accelerator.accumulate(self.model):
                loss = self.model(rows).square().mean()
                self.accelerator.backward(loss, num_items=ITEMS[index] if weighted else None)
                self.optimizer.step()
                self.optimizer.zero_grad()

    def weights(self):
        return self.accelerator.unwrap_model(self.model).weight.detach().clone()

    def gradient(self):
        return self.accelerator.unwrap_model(self.model).weight.grad


def unbroken(weighted):
    run = Run()
    run.train(range(4), weighted=weighted)
    return run.weights()


@pytest.mark.parametrize("saved_after", [1, 2, 3])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_window_continues_where_it_was_saved(tmp_path, weighted, saved_after):
    first = Run()
    first.train(range(saved_after), weighted=weighted)
    first.accelerator.save_state(tmp_path)
    other = Run()
    other.accelerator.load_state(tmp_path)
    other.train(range(saved_after, 4), weighted=weighted)
    assert torch.equal(other.weights(), unbroken(weighted))


def test_what_is_saved_right_after_loading_is_what_was_loaded(tmp_path):
    first = Run()
    first.train(range(2))
    first.accelerator.save_state(tmp_path / "one")
    second = Run()
    second.accelerator.load_state(tmp_path / "one")
    second.accelerator.save_state(tmp_path / "two")
    third = Run()
    third.accelerator.load_state(tmp_path / "two")
    third.train(range(2, 4))
    assert torch.equal(third.weights(), unbroken(True))


def test_going_back_to_a_checkpoint_leaves_no_gradient_of_what_came_after(tmp_path):
    run = Run()
    run.accelerator.save_state(tmp_path)
    run.train(range(3))
    assert run.gradient() is not None
    run.accelerator.load_state(tmp_path)
    assert run.gradient() is None
    assert run.accelerator.sync_gradients
    run.train(range(4))
    assert torch.equal(run.weights(), unbroken(True))


def test_with_another_number_of_steps_the_accumulation_starts_over(tmp_path, caplog):
    first = Run()
    first.train(range(3), weighted=False)
    first.accelerator.save_state(tmp_path)
    other = Run(num_steps=2)
    other.accelerator.load_state(tmp_path)
    assert "within an accumulation of 4 steps and is loaded into one of 2" in caplog.text
    assert other.gradient() is None
    assert other.accelerator.step == 0


def test_between_accumulations_another_number_of_steps_does_not_warn(tmp_path, caplog):
    first = Run()
    first.train(range(4), weighted=False)
    first.accelerator.save_state(tmp_path)
    other = Run(num_steps=3)
    other.accelerator.load_state(tmp_path)
    assert "accumulation" not in caplog.text
    assert other.accelerator.step == 0


def test_an_accumulation_of_accelerate_without_saved_gradients_starts_over(tmp_path, caplog):
    """Its files know the number of the micro-batch and nothing else."""
    first = Run()
    first.train(range(1))
    first.accelerator.save_state(tmp_path / "ours")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    name = "random_states_0.pkl"
    states = torch.load(tmp_path / "ours" / name)
    for key in ("accumulation", OWN_MARK):
        states.pop(key, None)
    torch.save(states, theirs / name)
    for file in ("model.safetensors", "optimizer.bin"):
        shutil.copy(tmp_path / "ours" / file, theirs)
    other = Run()
    other.accelerator.load_state(theirs)
    assert "whose gradients are not in it" in caplog.text
    assert other.accelerator.step == 0
    other.train(range(4))
    assert torch.equal(other.weights(), unbroken(True))


@pytest.mark.parametrize("value", ["text", [1], {"a": 1}])
def test_a_state_of_something_else_is_refused(tmp_path, value):
    first = Run()
    first.train(range(1))
    first.accelerator.save_state(tmp_path)
    states = torch.load(tmp_path / "random_states_0.pkl")
    states["accumulation"]["items"] = value
    with pytest.raises(CheckpointError, match="`it` does not have random states as expected"):
        from_file(states, device_index=0, file_name="it")


def test_each_rank_knows_by_itself_whether_its_window_was_open(tmp_path):
    """On a machine with its own disk there is no file of rank 0."""
    first = Run()
    first.train(range(2))
    first.accelerator.save_state(tmp_path)
    gradients, manifest = tmp_path / "accumulated_gradients_0.safetensors", tmp_path / MANIFEST_NAME
    gradients.unlink()
    content = json.loads(manifest.read_text())
    del content["seal"]
    content["files"] = [entry for entry in content["files"] if entry["name"] != gradients.name]
    manifest.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="accumulated_gradients_0.safetensors"):
        first.accelerator.load_state(tmp_path)


@pytest.mark.parametrize(("before", "after"), [("cpu", "xpu"), ("xpu", "cpu"), ("xpu", "cuda")])
def test_a_checkpoint_resumes_on_another_kind_of_device(tmp_path, before, after):
    def run_on(device, use):
        with vendor_module(device) if device != "cpu" else nullcontext():
            accelerator = Accelerator(cpu=device == "cpu", device_placement=False)
            model = nn.Linear(2, 1)
            prepared = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
            result = use(accelerator, *prepared)
            accelerator.end_training()
        type(accelerator.state)._reset_state(reset_partial_state=True)
        return result

    def save(accelerator, model, optimizer):
        accelerator.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        accelerator.save_state(tmp_path)
        return [*model.parameters(), optimizer.state_dict()["state"][0]["exp_avg"], torch.rand(3)]

    def load(accelerator, model, optimizer):
        with pytest.warns(UserWarning, match=f"captured on `{before}` and are restored on `{after}`"):
            accelerator.load_state(tmp_path)
        return [*model.parameters(), optimizer.state_dict()["state"][0]["exp_avg"], torch.rand(3)]

    assert all(map(torch.equal, run_on(before, save), run_on(after, load)))


ORDERS = {
    "default": ({}, {}),
    "seedable": ({"use_seedable_sampler": True}, {}),
    "seeded": ({"use_seedable_sampler": True, "data_seed": 3}, {}),
    "generator": ({}, {"generator": True}),
}


def epochs(folder, kind, *, is_resumed):
    """Return the data of two epochs, and what was logged; the checkpoint is in the middle of the one before."""
    configuration, options = ORDERS[kind]
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration))
    loader = DataLoader(
        range(16), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(2) if options else None
    )
    loader = accelerator.prepare(loader)
    with logged() as lines:
        if is_resumed:
            accelerator.load_state(folder, restore_loaders=True)
        for number, _ in enumerate(loader):
            if not is_resumed and number == 0:
                accelerator.save_state(folder)
        read = [torch.cat([accelerator.gather(batch) for batch in loader]) for _ in range(2)]
    # The samples of a step, whatever their order among the ranks.
    return [epoch.view(-1, 8).sort().values.tolist() for epoch in read], lines


@contextmanager
def logged():
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("accel").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("accel").removeHandler(handler)


@pytest.mark.parametrize("kind", ORDERS)
def test_another_number_of_ranks_keeps_the_order_or_explains_how_to(world, tmp_path, kind):
    (uninterrupted, _), _ = world(2).run(epochs, tmp_path / "saved", kind, is_resumed=False)
    (same, lines), _ = world(2).run(epochs, tmp_path / "saved", kind, is_resumed=True)
    assert same == uninterrupted
    assert not any("order" in line for line in lines)
    for number in (1, 4):
        (resumed, lines), *_ = world(number).run(epochs, tmp_path / "saved", kind, is_resumed=True)
        assert (resumed == uninterrupted) is (kind != "default")
        said = [
            line for line in lines if "`DataLoaderConfiguration(use_seedable_sampler=True)` keeps it" in line
        ]
        assert len(said) == (kind == "default")
