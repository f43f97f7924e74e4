"""The commands as modules to run, and what of them scripts import."""

from __future__ import annotations

import importlib
import runpy
import sys

import pytest

PROGRAMS = {
    "accel.commands.config": "accel config",
    "accel.commands.env": "accel env",
    "accel.commands.estimate": "accel estimate-memory",
    "accel.commands.launch": "accel launch",
    "accel.commands.test": "accel test",
    "accel.commands.tpu": "accel tpu-config",
}


@pytest.mark.parametrize("module", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")
def test_python_dash_m_is_the_command(monkeypatch, capsys, module):
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ending:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert ending.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {PROGRAMS[module]} ")


@pytest.mark.parametrize("module", sorted(PROGRAMS.keys() - {"accel.commands.test"}))
def test_main_is_the_command_of_the_module(capsys, module):
    assert importlib.import_module(module).main(["--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: {PROGRAMS[module]} ")
