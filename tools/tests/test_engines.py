import os
import re

from tools.engines import ENGINES, marked_files
from tools.engines.debian import missing_packages
from tools.engines.running import require_root
from tools.front_door import main
from tools.workspace import ROOT


def test_each_engine_has_marked_tests_and_each_mark_an_engine():
    texts = ((ROOT / file).read_text(encoding="utf-8") for file in marked_files(r"\w+"))
    assert {name for text in texts for name in re.findall(r"mark\.engine\(\"(\w+)\"\)", text)} == set(ENGINES)


def test_root_is_asked_for_before_anything_is_made(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    require_root(["aim", "openmpi"], [])
    assert main(["test", "--engines", "slurm"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: `--engines` needs root here: ")


def test_a_package_that_was_removed_is_missing_like_one_that_never_was_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_packages(["munge"]) == ["munge"]
    (tmp_path / "dpkg-query").write_text(
        "#!/bin/sh\necho 'munge installed'; echo 'mpich config-files'; exit 1\n"
    )
    (tmp_path / "dpkg-query").chmod(0o755)
    assert missing_packages(["mpich", "munge", "slurmd", "munge"]) == ["mpich", "slurmd"]
