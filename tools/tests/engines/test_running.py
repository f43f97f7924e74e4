import os

import pytest

from tools.engines import load_engine
from tools.engines.running import Outcome, require_root, table
from tools.front_door import main
from tools.setup.failures import SetupError


@pytest.fixture
def as_a_user(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)


def test_one_error_tells_a_user_what_root_is_needed_for(as_a_user):
    engines = [load_engine(name) for name in ("aim", "openmpi", "slurm", "ssh")]
    with pytest.raises(SetupError) as caught:
        require_root(engines, ["munge", "openmpi-bin"])
    assert str(caught.value).startswith(
        "`--engines` needs root here: apt-get would install munge, openmpi-bin;"
        " slurm, ssh start daemons and make network namespaces. "
    )


def test_what_is_installed_and_starts_no_daemons_needs_no_root(as_a_user):
    require_root([load_engine("aim"), load_engine("openmpi")], [])


def test_root_is_asked_for_before_anything_is_made(as_a_user, capsys):
    assert main(["test", "--engines", "slurm"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: `--engines` needs root here: ")


def test_the_table_names_the_engines_that_failed():
    text = table([Outcome("aim", 1.0, 2.0, 0), Outcome("slurm", 3.0, 4.0, 1)])
    assert text.splitlines() == [
        "  aim         set-up    1.0 s  tests    2.0 s  ok",
        "  slurm       set-up    3.0 s  tests    4.0 s  FAILED (pytest exit 1)",
        "failed: slurm, 10 s",
    ]


def test_help_tells_the_engines_and_what_they_are_for(capsys):
    with pytest.raises(SystemExit):
        main(["test", "--help"])
    assert "  slurm       srun and sbatch on a cluster of two nodes" in capsys.readouterr().out


def test_an_unknown_engine_is_refused_with_those_that_are_known(capsys):
    with pytest.raises(SystemExit):
        main(["test", "--engines", "slrum"])
    assert "there is no engine `slrum`; known: aim, clearml" in capsys.readouterr().err


def test_paths_are_refused_beside_engines(capsys):
    assert main(["test", "packages/accel-ops", "--engines"]) == 1
    assert "error: `--engines` chooses the tests itself" in capsys.readouterr().err
