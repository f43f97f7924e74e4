from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

from accel_bigmodel import save_model
from accel_bigmodel.saving.staging import staging_folder


def test_the_staging_folder_is_gone_afterwards_whatever_happens(tmp_path):
    with staging_folder(tmp_path) as staged:
        (staged / "file").write_text("x")
        assert staged.parent == tmp_path
    with pytest.raises(RuntimeError, match="on purpose"), staging_folder(tmp_path):
        raise RuntimeError("on purpose")
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_process_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path):
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    host = socket.gethostname()
    left, live, foreign = (
        tmp_path / f".saving-{name}"
        for name in (f"{host}-{int(dead.stdout)}-x", f"{host}-{os.getppid()}-y", "elsewhere-1-z")
    )
    for folder in (left, live, foreign):
        folder.mkdir()
        (folder / "half").write_text("x")
    save_model({"a": torch.ones(1)}, tmp_path)
    assert not left.exists()
    assert (live / "half").exists()
    assert (foreign / "half").exists()


KILLED = """
import os, signal, sys, torch
from accel_bigmodel import save_model
from accel_bigmodel.saving import models as saving
real = saving.SafetensorsWriter.write
def write(self, path, members):
    if "00002" in path.name:
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, path, members)
saving.SafetensorsWriter.write = write
save_model({"a": torch.zeros(100), "b": torch.zeros(100)}, sys.argv[1], 400)
"""


def test_a_killed_save_leaves_the_earlier_one_and_the_next_tidies_up(tmp_path):
    state = {"a": torch.ones(100), "b": torch.ones(100)}
    save_model(state, tmp_path, 400)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=180, check=False)
    assert done.returncode < 0
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after == before
    assert len(list(tmp_path.iterdir())) == len(before) + 1
    save_model(state, tmp_path, 400)
    assert {path.name for path in tmp_path.iterdir()} == set(before)
