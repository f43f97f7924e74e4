"""Whole loops: what accumulation, precision and schedules do over steps, ranks and loaders."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator, DataLoaderConfiguration, GradScalerKwargs
from tools.harness.device import on_cpu

pytestmark = pytest.mark.usefixtures("fresh_state")


def synced_around_evaluation(num_batches, *, evaluate_at, leave_early=False):
    """Which micro-batches synchronize, with an evaluation in the middle of an accumulation."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = nn.Linear(1, 1)
    model, optimizer, train, test = accelerator.prepare(
        *(model, torch.optim.SGD(model.parameters(), lr=0.1)),
        *(DataLoader(torch.ones(n, 1), batch_size=1) for n in (num_batches, 4)),
    )
    synced, kept = [], []
    for step, batch in enumerate(train):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            if step == evaluate_at:
                before = accelerator.sync_gradients
                for rows in test:
                    with torch.no_grad():
                        accelerator.gather_for_metrics(model(rows))
                    kept.append(accelerator.sync_gradients == before)
                    if leave_early:
                        break
                kept.append(accelerator.sync_gradients == before)
            optimizer.step()
            optimizer.zero_grad()
            synced.append(accelerator.sync_gradients)
    return synced, all(kept)


@pytest.mark.parametrize("leave_early", [False, True])
@pytest.mark.parametrize("evaluate_at", [0, 1, 2, 4, 7])
def test_an_evaluation_inside_the_training_loop_does_not_flip_the_accumulation(evaluate_at, leave_early):
    plain, _ = synced_around_evaluation(8, evaluate_at=None)
    assert plain == [False, False, True, False, False, True, False, True]
    assert synced_around_evaluation(8, evaluate_at=evaluate_at, leave_early=leave_early) == (plain, True)


def two_loaders(num_first, num_second):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    loaders = accelerator.prepare(*(DataLoader(torch.ones(n), batch_size=1) for n in (num_first, num_second)))
    synced = []
    for _ in zip(*loaders, strict=False):
        with accelerator.accumulate():
            synced.append(accelerator.sync_gradients)
    in_loop_after = accelerator.gradient_state.in_dataloader
    tail = []
    for _ in loaders[0]:
        with accelerator.accumulate():
            tail.append(accelerator.sync_gradients)
    return synced, in_loop_after, tail


def test_two_loaders_at_once_end_with_the_inner_one_and_leave_nothing_behind():
    synced, in_loop, following = two_loaders(6, 6)
    assert synced == [False, False, False, True, False, True]
    assert not in_loop
    assert following == [False, False, False, True, False, True]


def epochs(count):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    loader = accelerator.prepare(DataLoader(torch.ones(5), batch_size=1))
    synced = []
    for _ in range(count):
        for _ in loader:
            with accelerator.accumulate():
                synced.append(accelerator.sync_gradients)
    return synced


def test_each_epoch_accumulates_from_its_start():
    assert epochs(3) == [False, False, False, True, True] * 3


def overflow(bad_rank):
    """Losses 0 and 2 are fine, loss 1 is infinite on one rank."""
    accelerator = Accelerator(
        cpu=True, mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=1024.0)]
    )
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    plain = accelerator.unwrap_model(model)
    seen = []
    for step in range(3):
        is_bad = step == 1 and accelerator.process_index == bad_rank
        accelerator.backward(model(torch.ones(1, 2)).sum() * (float("inf") if is_bad else 1.0))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        skipped, rate = accelerator.optimizer_step_was_skipped, scheduler.get_last_lr()[0]
        seen.append((skipped, optimizer.scaler.get_scale(), rate, plain.weight.flatten().tolist()))
    return seen


@pytest.mark.parametrize(("num_processes", "bad_rank"), [(1, 0), (2, 0), (2, 1)])
def test_an_overflow_on_one_rank_skips_the_step_on_all(world, num_processes, bad_rank):
    decay = 0.5**num_processes  # a schedule counts batches of all processes
    for seen in world(num_processes).run(overflow, bad_rank):
        assert [skipped for skipped, *_ in seen] == [False, True, False]
        assert [scale for _, scale, *_ in seen] == [1024.0, 512.0, 512.0]
        assert [rate for _, _, rate, _ in seen] == [0.5 * decay, 0.5 * decay, 0.5 * decay**2]
        assert seen[0][3] == seen[1][3] == [0.0, 0.0]
        assert seen[2][3] == pytest.approx([-0.5 * decay] * 2)


def rates(unit, *, split_batches=False, steps=1, adjust=True):
    """The learning rate at each optimizer step, of a schedule that counts down from 1 by its own steps."""
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=steps,
        scheduler_unit=unit,
        dataloader_config=DataLoaderConfiguration(split_batches=split_batches),
    )
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = DataLoader(torch.ones(8, 1), batch_size=2 if split_batches else 1)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    found = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            found.append(round(1 / scheduler.get_last_lr()[0] - 1))
    return found


LEARNING_RATE_STEPS = [
    # processes, unit, split_batches, accumulation: steps of the schedule after each optimizer step
    (1, "process", False, 1, [1, 2, 3, 4, 5, 6, 7, 8]),
    (2, "process", False, 1, [2, 4, 6, 8]),
    (4, "process", False, 1, [4, 8]),
    (2, "process", True, 1, [1, 2, 3, 4]),
    (1, "process", False, 2, [1, 2, 3, 4]),
    (2, "process", False, 2, [2, 4]),
    (1, "optimizer_step", False, 1, [1, 2, 3, 4, 5, 6, 7, 8]),
    (2, "optimizer_step", False, 1, [1, 2, 3, 4]),
    (4, "optimizer_step", False, 1, [1, 2]),
    (2, "optimizer_step", True, 1, [1, 2, 3, 4]),
    (2, "optimizer_step", False, 2, [1, 2]),
]


@pytest.mark.parametrize(("num_processes", "unit", "split", "steps", "expected"), LEARNING_RATE_STEPS)
def test_the_schedule_moves_as_documented(world, num_processes, unit, split, steps, expected):
    """With `process` a schedule of 8 batches ends with the 8 samples, however many processes share them."""
    found = world(num_processes).run(rates, unit, split_batches=split, steps=steps)
    assert found == [expected] * num_processes


def train(global_batch, dtype, *, steps, weighted, max_norm):
    """Train a small network on 48 samples and return its losses (of each global step) and weights."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(48, 4, generator=generator, dtype=torch.float64).to(dtype)
    data = TensorDataset(inputs, inputs.prod(dim=1, keepdim=True))
    per_batch = global_batch // (accelerator.num_processes * steps)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=per_batch))
    losses, window = [], 0.0
    for _ in range(4):
        for batch, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(batch), targets)
                accelerator.backward(loss, num_items=len(batch) if weighted else None)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()
            window += loss.detach() / steps
            if accelerator.sync_gradients:
                losses.append(accelerator.reduce(window, "mean").item())
                window = 0.0
    weights = [p.detach().flatten() for p in accelerator.unwrap_model(model).parameters()]
    return losses, torch.cat(weights).tolist()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("num_processes", "steps"), [(1, 2), (2, 1), (2, 3), (4, 1), (4, 3)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # float32 rounds at 6e-8; Adam divides by roots of small second moments, which enlarges early differences.
    # Observed, relative: 1.0e-15 and 1.8e-6.
    [(torch.float64, 1e-12), (torch.float32, 1e-5)],
)
def test_clipped_training_is_the_same_however_the_batch_is_split(
    world, num_processes, steps, weighted, dtype, tolerance
):
    losses, weights = train(12, dtype, steps=1, weighted=False, max_norm=0.05)
    cut = world(num_processes).run(train, 12, dtype, steps=steps, weighted=weighted, max_norm=0.05)
    for there_losses, there_weights in cut:
        assert there_losses == pytest.approx(losses, rel=tolerance, abs=tolerance)
        assert there_weights == pytest.approx(weights, rel=tolerance, abs=tolerance)


def test_clipping_does_bite_in_that_training():
    free = train(12, torch.float64, steps=1, weighted=False, max_norm=1e9)
    clipped = train(12, torch.float64, steps=1, weighted=False, max_norm=0.05)
    assert free[1] != pytest.approx(clipped[1], rel=1e-6)


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Steps:
    """A small network and AdamW, trained on batches that are the same in every run; the fourth overflows in fp16."""

    def __init__(self, device, *, fused, seed=0):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 8)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=fused)
        self.rows = torch.randn(8, 4, 8, generator=torch.Generator().manual_seed(1)).to(device)

    def loss(self, outputs, step):
        return (outputs.float() - self.rows[step]).square().mean() * (1e8 if step == 3 else 1.0)

    def train_plainly(self, precision):
        device = self.rows.device.type
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=precision == "fp16")
        for step, rows in enumerate(self.rows):
            with torch.autocast(device, DTYPES.get(precision), enabled=precision in DTYPES):
                outputs = self.model(rows)
            scaler.scale(self.loss(outputs, step)).backward()
            scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            scaler.step(self.optimizer)
            scaler.update()
            self.optimizer.zero_grad()

    def prepare(self, precision="no"):
        handlers = [GradScalerKwargs(init_scale=1024.0)] if precision == "fp16" else []
        accelerator = Accelerator(cpu=on_cpu(), mixed_precision=precision, kwargs_handlers=handlers)
        self.model, self.optimizer = accelerator.prepare(self.model, self.optimizer)
        return accelerator

    def train(self, accelerator, steps):
        for step in steps:
            accelerator.backward(self.loss(self.model(self.rows[step]), step))
            accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def weights(self):
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_one_process_trains_bit_for_bit_as_plain_torch(device, precision, fused):
    plain = Steps(device, fused=fused)
    plain.train_plainly(precision)
    ours = Steps(device, fused=fused)
    ours.train(ours.prepare(precision), range(8))
    assert ours.weights().device == device
    assert torch.equal(ours.weights(), plain.weights())


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("fused", [False, True])
def test_a_resumed_run_is_bit_for_bit_the_one_that_was_not_stopped(device, tmp_path, fused, blocking):
    first = Steps(device, fused=fused)
    accelerator = first.prepare("fp16")
    first.train(accelerator, range(5))
    handle = accelerator.save_state(tmp_path / "saved", blocking=blocking)
    first.train(accelerator, range(5, 8))
    if not blocking:
        handle.wait()
    expected = first.weights()
    accelerator.free_memory()
    second = Steps(device, fused=fused, seed=1)
    accelerator = second.prepare("fp16")
    accelerator.load_state(tmp_path / "saved")
    second.train(accelerator, range(5, 8))
    assert torch.equal(second.weights(), expected)
