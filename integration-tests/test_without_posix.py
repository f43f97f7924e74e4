"""What runs on Windows: a Python without the modules, signals and calls that only POSIX systems have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

# torch and the standard library are as they are on this system; all that comes after them finds a Windows.
WITHOUT_POSIX = """
import asyncio, multiprocessing.spawn, os, shutil, signal, sys, tempfile
import torch.distributed.checkpoint, torch.utils.data

for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in [name for name in dir(signal) if name.startswith("SIG") and "_" not in name]:
    if name not in ("SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV"):
        delattr(signal, name)
for name in ("pthread_sigmask", "sigwait", "sigwaitinfo"):
    delattr(signal, name)
for name in (
    "O_DIRECTORY", "PRIO_PROCESS", "WNOHANG", "WUNTRACED", "fork", "getpgid", "getpgrp", "getpriority", "killpg",
    "openpty", "preadv", "sched_getaffinity", "sched_setaffinity", "setpgid", "setpriority", "setsid", "tcgetpgrp",
    "tcsetpgrp", "uname",
):
    delattr(os, name)
"""


def run_without_posix(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX + dedent(code)],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_process_trains_saves_and_loads(tmp_path):
    printed = run_without_posix(
        """
        import accel, accel_launch
        from accel import notebook_launcher

        def train():
            accelerator = accel.Accelerator(cpu=True)
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            data = torch.utils.data.TensorDataset(torch.ones(8, 1))
            loader = torch.utils.data.DataLoader(data, batch_size=2)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            before = model.weight.item()
            for (batch,) in loader:
                accelerator.backward(model(batch).sum())
                optimizer.step()
                optimizer.zero_grad()
            after = model.weight.item()
            accelerator.save_state("checkpoint")
            torch.nn.init.zeros_(model.weight)
            accelerator.load_state("checkpoint")
            print("trained", after < before, "loaded", model.weight.item() == after)
            accelerator.end_training()

        notebook_launcher(train, num_processes=1)
        """,
        tmp_path,
    )
    assert "trained True loaded True" in printed


def test_the_command_answers_and_names_what_it_cannot_do(tmp_path):
    (tmp_path / "script.py").write_text("print('started')\n")
    printed = run_without_posix(
        """
        import contextlib
        from accel import debug_launcher, notebook_launcher
        from accel_launch.cli import main

        assert main(["--help"]) == 0
        with contextlib.redirect_stderr(sys.stdout):
            assert main(["launch", "--cpu", "--num_processes", "1", "script.py"]) == 0
            assert main(["launch", "--cpu", "--num_processes", "2", "script.py"]) == 1
        for call in (lambda: debug_launcher(print), lambda: notebook_launcher(print, num_processes=2)):
            try:
                call()
            except ImportError as error:
                print(error)
        """,
        tmp_path,
    )
    assert printed.count("started") == 1
    assert "launch" in printed
    way_out = "Start one process, or work in WSL2"
    assert printed.count(way_out) == 3
    for what in (
        "A launch of several processes",
        "`debug_launcher`",
        "`notebook_launcher` with several processes",
    ):
        assert f"{what} needs processes that can be forked, which Windows cannot do." in printed
