import os

import pytest

from tools.engines.deepspeed import OPERATORS, compile_operators
from tools.setup.environment import Environment
from tools.setup.running import SetupError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the fake Python is a shell script")


@pytest.fixture
def make(tmp_path):
    """Return a function that gives an environment whose Python notes its call and ends as the test wants."""

    def make_one(code=0):
        made = Environment(str(tmp_path / "venv"))  # an absolute path stays as it is
        made.python.parent.mkdir(parents=True, exist_ok=True)
        note = f'echo "$DS_ACCELERATOR $TORCH_EXTENSIONS_DIR $*" | tail -n 1 >> {tmp_path}/calls'
        made.python.write_text(f"#!/bin/sh\n{note}\nexit {code}\n")
        made.python.chmod(0o755)
        return made

    return make_one


def num_calls(tmp_path):
    return len((tmp_path / "calls").read_text().splitlines())


def test_operators_are_compiled_once(make, tmp_path):
    for _ in range(2):
        compile_operators(make(), cache=tmp_path / "cache")
    assert num_calls(tmp_path) == 1
    assert (tmp_path / "calls").read_text().rstrip().endswith(" ".join(OPERATORS))


def test_the_lock_of_a_build_that_was_killed_is_removed(make, tmp_path):
    lock = tmp_path / "cache" / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    compile_operators(make(), cache=tmp_path / "cache")
    assert not lock.exists()


def test_a_failure_names_the_log_and_is_tried_again(make, tmp_path):
    with pytest.raises(SetupError, match=r"could not be compiled\. Log: .*deepspeed-operators\.log"):
        compile_operators(make(code=1), cache=tmp_path / "cache")
    compile_operators(make(), cache=tmp_path / "cache")
    assert num_calls(tmp_path) == 2
