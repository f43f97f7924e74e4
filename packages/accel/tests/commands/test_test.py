from __future__ import annotations

import json
from importlib.util import find_spec

from accel.commands.test import CHECK_MODULE
from accel_launch.cli import main


def test_it_launches_the_check_as_a_script_would_be(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "c.yaml").write_text("num_processes: 2\nuse_cpu: true\n")
    assert main(["test", "--config_file", str(tmp_path / "c.yaml"), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "ranks        2" in text
    assert f"-m {CHECK_MODULE}" in text


def test_there_is_such_a_module():
    assert find_spec(CHECK_MODULE) is not None


def test_it_takes_no_script(capsys):
    assert main(["test", "train.py"]) == 2
    assert "unknown option `train.py`" in capsys.readouterr().err


def test_flags_of_launch_are_flags_of_test(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert main(["config", "show", "--json", "--cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["use_cpu"]["source"] == "flag"
    assert main(["test", "--cpu", "--mixed_precision", "bf16", "--dry-run"]) == 0
    assert "ACCELERATE_MIXED_PRECISION=bf16" in capsys.readouterr().out


def test_its_help_is_short_and_has_the_topics_of_launch(capsys):
    assert main(["test", "--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 40
    assert "`accel test --help TOPIC`" in text
    assert "--module" not in text
    assert main(["test", "--help", "ray"]) == 0
    assert "--ray" in capsys.readouterr().out
