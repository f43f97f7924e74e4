import pytest

from accel import ProjectConfiguration
from accel_state.errors import ConfigError


def test_logs_go_to_the_project_folder_unless_they_have_one():
    assert ProjectConfiguration(project_dir="a").logging_dir == "a"
    assert ProjectConfiguration(project_dir="a", logging_dir="b").logging_dir == "b"


def test_set_directories_keeps_a_logging_folder_of_its_own():
    project = ProjectConfiguration(logging_dir="b")
    project.set_directories("a")
    assert (project.project_dir, project.logging_dir) == ("a", "b")


@pytest.mark.parametrize("total_limit", [0, -1])
def test_total_limit_below_one_is_refused(total_limit):
    with pytest.raises(ConfigError, match=f"`total_limit` must be at least 1 .* got {total_limit}"):
        ProjectConfiguration(total_limit=total_limit)


def test_negative_iteration_is_refused():
    with pytest.raises(ConfigError, match="`iteration` must not be negative, got -1"):
        ProjectConfiguration(iteration=-1)
