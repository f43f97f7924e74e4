"""Run inside the environment of installed wheels: is everything there, and does it train?

Takes the import names of the packages as arguments. Runs with the wheels' Python, far from the sources.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path


def require_installed(names: list[str]) -> None:
    """Fail unless each package is imported from site-packages and is typed."""
    site_packages = Path(sysconfig.get_path("purelib")).resolve()
    for name in names:
        file = importlib.import_module(name).__file__
        if file is None or not Path(file).resolve().is_relative_to(site_packages):
            sys.exit(f"`{name}` comes from {file}, not from {site_packages}.")
        if not Path(file).with_name("py.typed").is_file():
            sys.exit(f"The wheel of `{name}` lacks py.typed.")


def require_command() -> None:
    """Fail unless the `accel` command answers."""
    program = Path(sys.executable).with_name("accel")
    done = subprocess.run([str(program), "--help"], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0 or "launch" not in done.stdout:
        sys.exit(f"`accel --help` failed ({done.returncode}):\n{done.stdout}{done.stderr}")


def train() -> None:
    """Fit a line with the Accelerator; fail unless the loss falls."""
    import torch

    from accel import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    inputs = torch.randn(64, 1)
    data = torch.utils.data.TensorDataset(inputs, 3 * inputs + 1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(3):
        for batch, target in loader:
            loss = torch.nn.functional.mse_loss(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    if not losses[-1] < 0.1 * losses[0]:
        sys.exit(f"Training did not learn: the loss went from {losses[0]} to {losses[-1]}.")
    print(f"smoke test: loss {losses[0]:.3f} -> {losses[-1]:.5f}")
    accelerator.end_training()


if __name__ == "__main__":
    require_installed(sys.argv[1:])
    if "accel_launch" in sys.argv[1:]:
        require_command()
    if "accel" in sys.argv[1:]:
        train()
