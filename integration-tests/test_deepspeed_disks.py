"""States and parameters on a disk (NVMe) train as one process does, and continue from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed_runs import assert_equal, assert_weights, begin, plugin, steps, weights_of
from torch import nn

from accel_backends.unwrap import stepped_optimizer
from accel_state.errors import AccelError

pytestmark = pytest.mark.engine("disks")
CLIP, NUM_STEPS = 0.05, 4


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model with weights large enough for a disk, and AdamW that makes little of rounding errors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1300), nn.Tanh(), nn.Linear(1300, 512))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)


def rows() -> torch.Tensor:
    return torch.randn(16, 512, generator=torch.Generator().manual_seed(1))


class Run:
    """A new run that keeps states, or parameters too, below a folder; or else on the CPU."""

    def __init__(self, folder: Path, kind: str, **zero: Any) -> None:
        place = {"device": "nvme", "nvme_path": str(folder)}
        zero["offload_optimizer"] = {"device": "cpu"} if kind == "on the CPU" else place
        if kind == "states and parameters":
            zero["offload_param"] = {**place, "buffer_size": 2_000_000}
        sizes = {"train_micro_batch_size_per_gpu": 8}
        self.accelerator = begin(plugin(3, sizes, stage3_param_persistence_threshold=0, **zero))
        self.model, self.optimizer = self.accelerator.prepare(*make())

    def train(self, num_steps: int) -> list[float]:
        norms = []
        for _ in range(num_steps):
            batch = rows()[self.accelerator.process_index :: 2]
            self.accelerator.backward(self.model(batch).square().mean())
            norms.append(float(self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)))
            steps(self.optimizer)
        return norms

    def values(self) -> dict[str, Any]:
        """Return the weights, and what the optimizer keeps of them."""
        state = self.accelerator.strategy.optimizer_tensors(stepped_optimizer(self.optimizer))["state"]
        found = {f"{number} {name}": one for number, each in state.items() for name, one in each.items()}
        kept = {name: one.fetch() if hasattr(one, "fetch") else one for name, one in found.items()}
        return {**weights_of(self.accelerator, self.model), **kept}


def resume(folder: Path, kind: str) -> None:
    run, (alone, optimizer) = Run(folder, kind), make()
    norms = []
    for _ in range(NUM_STEPS):
        alone(rows()).square().mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(alone.parameters(), CLIP)))
        steps(optimizer)
    assert run.train(NUM_STEPS) == pytest.approx(norms, rel=1e-5)
    assert any(not flat.numel() for flat in run.model.optimizer.fp32_partitioned_groups_flat)  # on the disk
    assert_weights(run.accelerator, run.model, alone)
    saved = run.values()
    assert len(saved) >= 4 * 2
    run.accelerator.save_state(folder / "checkpoint")
    with pytest.raises(AccelError, match="save in the format `full`"):
        run.accelerator.save_state(folder / "files", checkpoint_format="deepspeed")
    later_norms, later = run.train(2), run.values()
    run.accelerator.load_state(folder / "checkpoint")  # where there are states already
    assert_equal(run.values(), saved)
    run.accelerator.free_memory()
    for other in (kind, "on the CPU"):
        run = Run(folder, other)
        run.accelerator.load_state(folder / "checkpoint", verify=True)
        assert_equal(run.values(), saved)
        # On the CPU the norm is that of one group, and sums are rounded otherwise.
        assert run.train(2) == pytest.approx(later_norms, rel=1e-5 if other == "on the CPU" else 0)
        assert_equal(run.values(), later, atol=1e-5 if other == "on the CPU" else 0.0)
        run.accelerator.free_memory()


@pytest.mark.parametrize("kind", ["states", "states and parameters"])
def test_a_run_on_a_disk_trains_as_one_process_and_continues_there_and_elsewhere(world, tmp_path, kind):
    world(2).run(resume, tmp_path, kind)


def refuse_one_group(folder: Path) -> None:
    with pytest.raises(AccelError, match=r"would read wrong gradients of `2\.weight`\. Leave the key out"):
        Run(folder, "states", sub_group_size=10**9)


def test_a_group_with_gradients_that_deepspeed_reads_wrongly_is_refused(world, tmp_path):
    world(2).run(refuse_one_group, tmp_path)
