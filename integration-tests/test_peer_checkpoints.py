"""Checkpoints of Accelerate load here, and ours load there; with the real package, in an environment of its own.

The environment is `tools/dev.py bench`'s, or the Python that `ACCEL_PEER_PYTHON` names.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("either_package.py")
ROOT = Path(__file__).parents[1]


def peer_python():
    named = os.environ.get("ACCEL_PEER_PYTHON")
    candidates = [Path(named)] if named else sorted(ROOT.glob(".venvs/bench*/bin/python"))
    return next((str(python) for python in candidates if has(python, "accelerate")), None)


def has(python, package):
    """Whether the environment of ``python`` has ``package``; the package itself is not imported."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], timeout=60, check=False).returncode == 0


PEER = peer_python()
PEER_HAS_TORCHDATA = PEER is not None and has(PEER, "torchdata")
pytestmark = [
    pytest.mark.skipif(
        PEER is None,
        reason="no environment with accelerate: run `python tools/dev.py bench ready` or set ACCEL_PEER_PYTHON",
    ),
]


def run(package, action, folder, out, *options, num_processes):
    python = sys.executable if package == "accel" else PEER
    launch = (
        [] if num_processes == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    )
    done = subprocess.run(
        [python, *launch, str(SCRIPT), package, action, str(folder), str(out), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(num_processes)]


@pytest.mark.parametrize(("saver", "loader"), [("accelerate", "accel"), ("accel", "accelerate")])
@pytest.mark.parametrize(
    ("num_processes", "options"),
    [(1, ["bin", "scaler"]), (1, ["safe", "position"]), (2, ["safe", "position"])],
    ids=["bin-scaler", "safe-position", "two-processes"],
)
def test_everything_carries_over(tmp_path, saver, loader, num_processes, options):
    if not PEER_HAS_TORCHDATA:
        options = [option for option in options if option != "position"]
    saved = run(saver, "save", tmp_path / "a", tmp_path / "saved", *options, num_processes=num_processes)
    loaded = run(loader, "load", tmp_path / "a", tmp_path / "loaded", *options, num_processes=num_processes)
    for rank in range(num_processes):
        assert loaded[rank] == saved[rank]
