import typing

import pytest

from accel import Accelerator, ProjectConfiguration, Retention
from accel_state.errors import ConfigError


def test_logs_go_to_the_project_folder_unless_they_have_one():
    assert ProjectConfiguration(project_dir="a").logging_dir == "a"
    assert ProjectConfiguration(project_dir="a", logging_dir="b").logging_dir == "b"


def test_set_directories_keeps_a_separate_logging_folder():
    project = ProjectConfiguration(logging_dir="b")
    project.set_directories("a")
    assert (project.project_dir, project.logging_dir) == ("a", "b")


@pytest.mark.parametrize("total_limit", [0, -1, 1.5, "3", True])
def test_a_total_limit_that_is_no_number_of_checkpoints_is_refused(total_limit):
    match = f"`total_limit` must be a whole number of at least 1, .* got {total_limit!r}"
    with pytest.raises(ConfigError, match=match):
        ProjectConfiguration(total_limit=total_limit)


@pytest.mark.parametrize("iteration", [-1, "2", 0.5])
def test_an_iteration_that_is_no_number_of_a_checkpoint_is_refused(iteration):
    match = f"`iteration` must be a whole number of at least 0, got {iteration!r}"
    with pytest.raises(ConfigError, match=match):
        ProjectConfiguration(iteration=iteration)


def test_the_types_of_its_fields_can_be_resolved():
    assert typing.get_type_hints(ProjectConfiguration)["retention"] == Retention | None


@pytest.mark.parametrize(
    ("name", "value"), [("iteration", 1.5), ("iteration", -1), ("iteration", True), ("total_limit", 0)]
)
def test_a_number_that_cannot_be_is_refused_where_it_is_assigned_too(name, value):
    project = ProjectConfiguration(iteration=3, total_limit=2)
    with pytest.raises(ConfigError, match=f"`{name}` must be a whole number"):
        setattr(project, name, value)
    assert (project.iteration, project.total_limit) == (3, 2)


def test_a_relative_folder_is_that_of_the_beginning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = ProjectConfiguration(project_dir="run", automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    accelerator.save_state()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    accelerator.save_state()
    assert accelerator.load_state()
    assert [path.name for path in sorted((tmp_path / "run/checkpoints").glob("checkpoint_*"))] == [
        "checkpoint_0",
        "checkpoint_1",
    ]
    assert accelerator.project_dir == "run"
