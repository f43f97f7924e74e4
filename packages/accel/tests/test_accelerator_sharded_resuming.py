"""A sharded run that is saved within an epoch and resumed in another process continues as if it had not stopped."""

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from accel import Accelerator, DataLoaderConfiguration, FullyShardedDataParallelPlugin, GradScalerKwargs
from tools.harness.device import on_cpu
from tools.harness.models import make_model

NUM_EPOCHS, NUM_BATCHES, SAVED_AT = 3, 5, (1, 2)
"""The run is saved after the third batch of the second epoch."""


class Samples(torch.utils.data.Dataset):
    """Samples that show which they are."""

    def __len__(self):
        return 2 * 3 * NUM_BATCHES

    def __getitem__(self, index):
        return torch.full((7,), float(index))


class Run:
    """Training with everything that a checkpoint has to keep: random numbers, loss scaling, a schedule, an order."""

    def __init__(self, *, seed, stateful):
        plugin = FullyShardedDataParallelPlugin(fsdp_version=1, state_dict_type="SHARDED_STATE_DICT")
        self.accelerator = Accelerator(
            cpu=on_cpu(),
            fsdp_plugin=plugin,
            mixed_precision="fp16",
            kwargs_handlers=[GradScalerKwargs(init_scale=2.0**22, growth_interval=3)],
            dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful),
        )
        model = make_model("dropout", seed=seed)
        torch.manual_seed(100 * seed + self.accelerator.process_index)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
        loader = DataLoader(Samples(), batch_size=3, shuffle=True)
        self.model, self.optimizer, self.scheduler, self.loader = self.accelerator.prepare(
            model, optimizer, scheduler, loader
        )

    def go_on(self, *, epoch=0, step=0, save_to=None):
        """Train to the end; return what happened in each step."""
        history = []
        while epoch < NUM_EPOCHS:
            for rows in self.loader:
                loss = self.step(rows / 10)
                if (epoch, step) == SAVED_AT and save_to is not None:
                    self.accelerator.save_state(save_to)
                history.append(
                    {
                        "at": (epoch, step),
                        "samples": rows[:, 0].tolist(),
                        "loss": loss,
                        "scale": self.accelerator.scaler.get_scale(),
                        "skipped": self.optimizer.step_was_skipped,
                        "rate": self.scheduler.get_last_lr(),
                        "weights": self.weights(),
                    }
                )
                step += 1
            epoch, step = epoch + 1, 0
        return history

    def step(self, rows):
        loss = self.model(rows).square().mean()
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.item()

    def weights(self):
        parts = [parameter.detach() for parameter in self.model.parameters()]
        parts = [part.to_local() if isinstance(part, DTensor) else part for part in parts]
        return torch.cat([part.flatten() for part in parts]).tolist()


def train(folder, **options):
    return Run(seed=7, **options).go_on(save_to=folder)


def resume(folder, *, stateful, **options):
    run = Run(seed=99, stateful=stateful, **options)
    run.accelerator.load_state(folder, **({} if stateful else {"restore_loaders": True}))
    epoch, step = SAVED_AT
    return run.go_on(epoch=epoch, step=step + 1)


@pytest.mark.parametrize("stateful", [False, True])
def test_a_run_resumed_within_an_epoch_goes_on_bit_for_bit(world, device, tmp_path, stateful):
    if stateful:
        pytest.importorskip("torchdata", reason="needs the extra accel-data[torchdata]")
    options = {"stateful": stateful}
    before = world(2).run(train, tmp_path / "a", **options)
    assert (tmp_path / "a" / "pytorch_model_fsdp_0").is_dir()
    after = world(2).run(resume, tmp_path / "a", **options)
    done = SAVED_AT[0] * NUM_BATCHES + SAVED_AT[1] + 1
    for whole, rest in zip(before, after, strict=True):
        assert len({step["scale"] for step in whole[done:]}) > 1
        assert any(step["skipped"] for step in whole[:done])
        assert len({tuple(step["rate"]) for step in whole[done:]}) > 1
        assert rest == whole[done:]
    assert before[0][0]["samples"] != before[1][0]["samples"]
