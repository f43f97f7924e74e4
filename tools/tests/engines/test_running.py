import os
import threading

import pytest

from tools.engines import load_engine
from tools.engines.protocol import Engine
from tools.engines.running import Outcome, require_root, set_up_all, table
from tools.front_door import main
from tools.setup.environment import Environment
from tools.setup.running import SetupError


class Ready(Environment):
    def ensure(self):
        return self


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
    text = table([Outcome("aim", 1.0, 2.0, 0), Outcome("slurm", 3.0, 4.0, 1)], total_s=9.0)
    assert text.splitlines() == [
        "  aim         set-up    1.0 s  tests    2.0 s  ok",
        "  slurm       set-up    3.0 s  tests    4.0 s  FAILED (pytest exit 1)",
        "failed: slurm, 9 s",
    ]


def test_environments_are_set_up_beside_each_other_and_engines_of_one_in_turn():
    both_have_begun, log = threading.Barrier(2, timeout=30), []

    def engine(name, environment, *, waits=False):
        def prepare(environment):
            log.append(name)
            if waits:
                both_have_begun.wait()

        return Engine(name, "", (), environment=Ready(environment), prepare=prepare)

    engines = [engine("a", "x", waits=True), engine("b", "x"), engine("c", "y", waits=True), engine("d", "x")]
    ready = set_up_all(engines)
    assert [each.name for each, _, _ in ready] == ["a", "b", "c", "d"]
    assert [environment.name for _, environment, _ in ready] == ["x", "x", "y", "x"]
    assert [name for name in log if name != "c"] == ["a", "b", "d"]


def test_an_environment_that_cannot_be_set_up_is_an_error():
    def fail(environment):
        raise SetupError("no compiler")

    with pytest.raises(SetupError, match="no compiler"):
        set_up_all([Engine("a", "", (), environment=Ready("x"), prepare=fail)])


def test_help_tells_the_engines_and_what_they_are_for(capsys):
    with pytest.raises(SystemExit):
        main(["test", "--help"])
    assert "  slurm       srun and sbatch on a cluster of two nodes" in capsys.readouterr().out


def test_an_unknown_engine_is_refused_with_those_that_are_known(capsys):
    with pytest.raises(SystemExit):
        main(["test", "--engines", "slrum"])
    assert "there is no engine `slrum`; known: aim, alone, clearml" in capsys.readouterr().err


def test_paths_are_refused_beside_engines(capsys):
    assert main(["test", "packages/accel-ops", "--engines"]) == 1
    assert "error: `--engines` selects the tests" in capsys.readouterr().err
