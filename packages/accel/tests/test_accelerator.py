import signal
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator, DataLoaderConfiguration
from accel_state import GradientAccumulationPlugin
from accel_state.environment import patch_environment
from accel_state.errors import CheckpointError, ConfigError, NotAvailableError
from accel_trackers import GeneralTracker

pytestmark = pytest.mark.usefixtures("fresh_state")


def regression(num_samples=24):
    inputs = torch.linspace(-1, 1, num_samples, dtype=torch.float64).unsqueeze(1).repeat(1, 3)
    inputs = inputs * torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(dim=1, keepdim=True) * 3 + 1))


def linear():
    model = nn.Linear(3, 1, dtype=torch.float64)
    nn.init.constant_(model.weight, 0.1)
    nn.init.zeros_(model.bias)
    return model


def train(global_batch, *, steps=1, drop_last=True, num_samples=24):
    """Train a line in fp64 and return its losses (means over ranks) and its weights."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    per_process = global_batch // accelerator.num_processes
    loader = DataLoader(regression(num_samples), batch_size=per_process, drop_last=drop_last)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(3):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 100.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    model = accelerator.unwrap_model(model)
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


@pytest.mark.parametrize("num_processes", [2, 4])
def test_training_on_several_processes_equals_training_on_one(world, num_processes):
    losses, weights = train(8)
    for there in world(num_processes).run(train, 8):
        assert there[0] == pytest.approx(losses, rel=1e-12)
        assert there[1] == pytest.approx(weights, rel=1e-12)


def test_accumulating_micro_batches_equals_one_batch():
    _, whole = train(8)
    _, parts = train(2, steps=4)
    assert parts == pytest.approx(whole, rel=1e-12)


def test_accumulating_on_two_processes_equals_one_batch(world):
    _, whole = train(8)
    for _, parts in world(2).run(train, 4, steps=2):
        assert parts == pytest.approx(whole, rel=1e-12)


def evaluate(num_samples, batch_size, **configuration):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration))
    loader = accelerator.prepare(DataLoader(torch.arange(num_samples), batch_size=batch_size))
    return [value for batch in loader for value in accelerator.gather_for_metrics(batch).tolist()]


@pytest.mark.parametrize("num_samples", [1, 7, 8, 9, 13])
@pytest.mark.parametrize("configuration", [{}, {"split_batches": True}, {"dispatch_batches": True}])
def test_every_sample_is_evaluated_once_and_in_order(world, num_samples, configuration):
    for seen in world(2).run(evaluate, num_samples, 4, **configuration):
        assert seen == list(range(num_samples))


def test_objects_come_back_in_the_order_given():
    accelerator = Accelerator(cpu=True)
    model, loader = linear(), DataLoader(regression(), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    words = "not mine to prepare"
    out = accelerator.prepare(scheduler, loader, words, optimizer, model)
    assert (out[0].scheduler, out[2], out[3].optimizer) == (scheduler, words, optimizer)
    assert isinstance(out[1], DataLoader)
    assert out[1].dataset is loader.dataset
    assert accelerator.unwrap_model(out[4]) is model


def test_preparing_again_changes_nothing():
    accelerator = Accelerator(cpu=True)
    first = accelerator.prepare(linear(), DataLoader(regression(), batch_size=4))
    assert accelerator.prepare(*first) == first


def test_one_object_comes_back_unpacked():
    assert isinstance(Accelerator(cpu=True).prepare(linear()), nn.Module)


def test_device_placement_of_another_length_is_refused():
    with pytest.raises(ConfigError, match="has 2 entries for 1 objects"):
        Accelerator(cpu=True).prepare(linear(), device_placement=[True, False])


def triggered():
    accelerator = Accelerator(cpu=True)
    quiet = accelerator.check_trigger()
    if accelerator.process_index == 1:
        accelerator.set_trigger()
    return [quiet, accelerator.check_trigger(), accelerator.check_trigger()]


def test_a_trigger_on_one_rank_is_seen_once_on_all(world):
    assert world(2).run(triggered) == [[False, True, False]] * 2


def test_the_last_batch_ends_an_accumulation():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    loader = accelerator.prepare(DataLoader(torch.arange(6), batch_size=1))
    synced = []
    for _ in loader:
        with accelerator.accumulate():
            synced.append(accelerator.sync_gradients)
    assert synced == [False, False, False, True, False, True]


def test_the_last_batch_does_not_end_an_accumulation_if_the_plugin_disables_it():
    plugin = GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    loader = accelerator.prepare(DataLoader(torch.arange(6), batch_size=1))
    synced = []
    for _ in loader:
        with accelerator.accumulate():
            synced.append(accelerator.sync_gradients)
    assert synced == [False, False, False, True, False, False]


def test_the_number_of_accumulation_steps_may_change_between_steps():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator.gradient_accumulation_steps = 3
    assert accelerator.gradient_accumulation_steps == 3
    synced = []
    for _ in range(3):
        with accelerator.accumulate():
            synced.append(accelerator.sync_gradients)
    assert synced == [False, False, True]


def test_an_engine_that_is_not_there_is_an_error_not_a_plain_run():
    with (
        patch_environment(accelerate_use_megatron_lm="true"),
        pytest.raises(NotAvailableError, match=r"`megatron-core`.*`pip install 'megatron-core>=0.16"),
    ):
        Accelerator(cpu=True)


def test_an_unknown_precision_is_an_error():
    with pytest.raises(ConfigError, match="bf17"):
        Accelerator(cpu=True, mixed_precision="bf17")


def test_a_second_accelerator_must_agree_with_the_first():
    Accelerator(cpu=True, mixed_precision="bf16")
    with pytest.raises(Exception, match="mixed_precision"):
        Accelerator(cpu=True, mixed_precision="no")


def test_free_memory_forgets_what_was_prepared():
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(linear())
    (model,) = accelerator.free_memory(model)
    assert model is None
    assert accelerator._models == []


class Closing(GeneralTracker):
    """A tracker that cannot log, and shows when it is closed."""

    name = "closing"
    requires_logging_directory = False
    tracker = None
    is_closed = False

    def store_init_configuration(self, values):
        pass

    def log(self, values, step=None, **kwargs):
        raise OSError("no space left")

    def finish(self):
        self.is_closed = True


class Unsaveable:
    """An object whose state only code can rebuild once a value is set."""

    value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        pass


def test_everything_is_closed_in_the_end_and_the_first_error_is_raised(tmp_path):
    tracker, before = Closing(), signal.getsignal(signal.SIGTERM)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project")
    accelerator.handle_preemption()
    unsaveable = Unsaveable()
    accelerator.register_for_checkpointing(unsaveable)
    unsaveable.value = object()
    accelerator.save_state(tmp_path / "a", blocking=False)
    accelerator.log({"loss": 1.0}, step=3)
    with pytest.raises(CheckpointError, match="custom_checkpoint_0.pkl` cannot be saved") as caught:
        accelerator.end_training()
    assert "`closing` failed to log step 3: OSError: no space left" in caught.value.__notes__[-1]
    assert tracker.is_closed
    assert signal.getsignal(signal.SIGTERM) == before


def test_building_an_accelerator_reads_what_the_launcher_specified():
    with patch_environment(accelerate_mixed_precision="bf16", accelerate_gradient_accumulation_steps=3):
        accelerator = Accelerator(cpu=True)
    assert (accelerator.mixed_precision, accelerator.gradient_accumulation_steps) == ("bf16", 3)


def test_accel_is_imported_without_torch():
    code = "import sys, accel; sys.exit(int('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=180).returncode == 0


def test_an_accelerator_that_shards_nothing_imports_nothing_of_sharding():
    code = (
        "import sys; from accel import Accelerator; Accelerator(cpu=True); "
        "sys.exit(any(name in sys.modules for name in ('torch.distributed.tensor', 'torch.distributed.fsdp')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
