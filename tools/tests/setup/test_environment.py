import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.setup import environment as environment_module
from tools.setup.environment import STAMP, Environment
from tools.setup.failures import SetupError
from tools.workspace import read_packages

FAKE_PIP = """\
#!/bin/sh
case "$*" in
  *"pip install"*) echo "$*" >> "{folder}/calls"; {outcome} ;;
  *"sys.version"*) exec {python} "$@" ;;
  *direct_url*) printf '{strangers}' ;;
esac
"""


@pytest.fixture
def make(checkout, tmp_path, monkeypatch):
    """Return a function that gives an environment whose Python is a script: pip ends as the test wants."""
    monkeypatch.setattr(environment_module, "ROOT", tmp_path)
    monkeypatch.setattr(environment_module, "pip_arguments_for_torch", lambda python, constraints: [])
    constraints = checkout.write("tools/constraints.txt", "torch==2.13.0\n")

    def make_one(
        *, outcome: str = "exit 0", strangers: str = "", requirements: Sequence[str] = ("pytest",)
    ) -> Environment:
        packages = list(read_packages(checkout.root).values())
        made = Environment(tmp_path / ".venv", packages, requirements, constraints)
        made.python.parent.mkdir(parents=True, exist_ok=True)
        script = FAKE_PIP.format(folder=tmp_path, outcome=outcome, python=sys.executable, strangers=strangers)
        made.python.write_text(script)
        made.python.chmod(0o755)
        return made

    return make_one


pytestmark = pytest.mark.skipif(os.name == "nt", reason="the fake Python is a shell script")


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def test_an_index_is_asked_for_everything_but_the_packages_of_the_checkout(make, tmp_path):
    make().ensure()
    third_party, editable = calls(tmp_path)
    assert third_party.split(" numpy>=1.26 ")[1].split()[:3] == ["hatchling", "editables", "pytest"]
    assert "accel" not in third_party.replace(str(tmp_path), "")
    assert editable.count(" -e ") == 9
    assert {"--no-index", "--no-deps"} <= set(editable.split())


def test_nothing_is_installed_twice(make, tmp_path):
    make().ensure()
    make().ensure()
    assert len(calls(tmp_path)) == 2


def test_a_larger_set_is_added_to_a_smaller_one_and_holds_it(make, tmp_path):
    small, large = make(), make(requirements=["pytest", "mypy"])
    small.ensure()
    assert not large.is_ready()
    large.ensure()
    assert small.is_ready()
    small.ensure()
    assert len(calls(tmp_path)) == 4


@pytest.mark.parametrize("changed", ["packages/accel-ops/pyproject.toml", "tools/constraints.txt"])
def test_a_change_of_what_is_wanted_installs_again(make, tmp_path, checkout, changed):
    make().ensure()
    checkout.write(changed, checkout.read(changed) + "\n# changed\n")
    make().ensure()
    assert len(calls(tmp_path)) == 4


def test_a_change_of_source_installs_nothing(make, tmp_path, checkout):
    make().ensure()
    checkout.write("packages/accel-ops/src/accel_ops/new.py", "")
    make().ensure()
    assert len(calls(tmp_path)) == 2


def test_another_version_of_a_package_installs_again(make, tmp_path, checkout):
    make().ensure()
    checkout.replace("packages/accel-data/src/accel_data/__init__.py", "0.1.0", "0.1.1")
    make().ensure()
    assert len(calls(tmp_path)) == 4


def test_a_cuda_build_without_stubs_is_told(make, monkeypatch, capsys):
    monkeypatch.setattr(environment_module, "pip_arguments_for_torch", lambda python, constraints: None)
    make().ensure()
    assert "torch comes from the index, maybe with several GB of CUDA" in capsys.readouterr().err


def test_a_failure_names_the_log_and_leaves_no_stamp(make, tmp_path):
    failing = make(outcome="echo '[Errno 28] No space left on device'; exit 1")
    with pytest.raises(SetupError, match=r"The disk is full.*pip-venv\.log"):
        failing.ensure()
    assert "No space left" in failing.log.read_text()
    assert not (failing.folder / STAMP).exists()


def test_after_a_failure_the_old_inputs_do_not_pass_for_installed(make, checkout):
    path = "packages/accel-ops/pyproject.toml"
    before = checkout.read(path)
    make().ensure()
    checkout.write(path, before + "\n# changed\n")
    with pytest.raises(SetupError):
        make(outcome="exit 1").ensure()
    checkout.write(path, before)
    assert not make().is_ready()


def test_an_unreachable_index_is_told(make):
    with pytest.raises(SetupError, match="The package index is unreachable"):
        make(outcome="echo 'Failed to establish a new connection'; exit 1").ensure()


def test_a_sibling_from_an_index_is_refused(make):
    with pytest.raises(SetupError, match="accel-ops came from an index, not from this checkout"):
        make(strangers="accel-ops").ensure()


def test_a_full_disk_is_refused_before_anything_is_made(make, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10**6})
    monkeypatch.setattr(environment_module.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(SetupError, match="The disk is full"):
        make().ensure()
    assert not (tmp_path / "calls").exists()


def test_an_environment_sees_the_packages_of_its_base_and_is_renewed_with_it(tmp_path):
    base = Environment(tmp_path / "base", requirements=["torch"])
    upper = Environment(tmp_path / "upper", requirements=["numpy"], base=base)
    base.site_packages.mkdir(parents=True)
    (base.site_packages / "of_the_base.py").write_text("print('seen')")
    upper._create()
    done = subprocess.run(
        [upper.python, "-c", "import of_the_base"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "seen\n"
    other = Environment(
        upper.folder, requirements=["numpy"], base=Environment(base.folder, extra_constraints=["a"])
    )
    assert other.inputs() != upper.inputs()
