"""Two runs that save in one `project_dir` are noticed."""

import shutil
import sys

import pytest
from torch import nn

from accel import Accelerator, ProjectConfiguration
from tools.harness.scripts import run_script

pytestmark = [
    pytest.mark.usefixtures("fresh_state"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc"),
]
ACCEL = ("accel.accelerator", "accel.utils")
WARNING = "Another run saves in"


def run_in(folder):
    project = ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, project_config=project)
    accelerator.prepare(nn.Linear(2, 1))
    return accelerator


def num_warnings(caplog):
    return sum(WARNING in record.getMessage() for record in caplog.records)


def save_in_world(folder, *, loads=False, num=1):
    accelerator = run_in(folder)
    if loads:
        accelerator.load_state()
    for _ in range(num):
        accelerator.save_state()


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("loads", [False, True])
def test_a_run_next_to_one_that_continues_is_warned_once(world, tmp_path, caplog, num_ranks, loads):
    world(num_ranks).run(save_in_world, str(tmp_path), num=5)  # whose processes continue
    accelerator = run_in(tmp_path)
    if loads:
        accelerator.load_state()
    for _ in range(3):
        accelerator.save_state()
    assert num_warnings(caplog) == 1
    assert f"`{tmp_path / 'checkpoints'}` too: each of them may remove the other's" in caplog.text
    assert "Give each run a separate `project_dir`" in caplog.text


def test_a_run_whose_number_another_one_has_passed_is_warned(tmp_path, caplog):
    """The other one has ended by then, as seen from another machine."""
    accelerator = run_in(tmp_path)
    accelerator.save_state()
    run_script(__file__, str(tmp_path), "4", timeout_s=60, preload=ACCEL).check_returncode()
    accelerator.save_state()
    accelerator.save_state()
    assert num_warnings(caplog) == 1


def test_resuming_and_other_accelerators_of_the_process_are_no_other_run(tmp_path, caplog):
    run_script(__file__, str(tmp_path), "4", timeout_s=60, preload=ACCEL).check_returncode()
    first = run_in(tmp_path)
    first.load_state()
    for _ in range(2):
        first.save_state()
    shutil.rmtree(tmp_path / "checkpoints" / "checkpoint_6")  # by hand: an older one is the newest
    first.save_state()
    second = run_in(tmp_path)
    second.load_state()
    second.save_state()
    second.save_state(blocking=False).wait()
    first.project_configuration.iteration = 20
    first.save_state()
    assert num_warnings(caplog) == 0


def test_a_restart_on_several_ranks_is_no_other_run(tmp_path):
    for _ in range(2):
        done = run_script(__file__, str(tmp_path), "", num_processes=2, timeout_s=60, preload=ACCEL)
        assert done.returncode == 0, done.stderr
        assert WARNING not in done.stderr
    assert (tmp_path / "checkpoints" / "checkpoint_3").is_dir()


if __name__ == "__main__":
    running = run_in(sys.argv[1])
    running.load_state(missing_ok=True)
    if sys.argv[2]:
        running.project_configuration.iteration = int(sys.argv[2])
    for _ in range(2):
        running.save_state()
    running.end_training()
