from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from accel_launch.plan import LaunchPlan, ProcessPlan

PROCESS = ProcessPlan(("python", "a b.py"), Path("/srv"), environ={"B": "2", "A": "1"}, unset=("RANK",))


def test_environ_on_adds_to_the_hosts_variables_and_drops_the_unset_ones():
    assert PROCESS.environ_on({"A": "old", "RANK": "3", "HOME": "/root"}) == {
        "A": "1",
        "B": "2",
        "HOME": "/root",
    }


def test_a_plan_cannot_be_changed():
    with pytest.raises(AttributeError):
        PROCESS.host = "elsewhere"
    with pytest.raises(TypeError):
        PROCESS.environ["A"] = "3"


def test_a_plan_does_not_follow_the_mapping_it_was_made_from():
    variables = {"A": "1"}
    process = ProcessPlan(("true",), Path("/"), environ=variables)
    variables["A"] = "2"
    assert process.environ["A"] == "1"


def test_to_dict_survives_json():
    plan = LaunchPlan("local", (PROCESS,), num_ranks=2, port=29500)
    assert json.loads(json.dumps(plan.to_dict())) == {
        "launcher": "local",
        "num_ranks": 2,
        "grace_period_s": 30.0,
        "port": 29500,
        "is_quiet": False,
        "report": None,
        "max_restarts": 0,
        "prefix": "",
        "shown_ranks": None,
        "tee": "0",
        "log_dir": None,
        "options": {},
        "processes": [
            {
                "host": "localhost",
                "rank": None,
                "argv": ["python", "a b.py"],
                "cwd": "/srv",
                "environ": {"A": "1", "B": "2"},
                "unset": ["RANK"],
                "private": [],
            }
        ],
    }


def test_describe_shows_a_command_that_a_shell_reads_back():
    lines = LaunchPlan("single", (PROCESS,), num_ranks=1).describe().splitlines()
    command = next(line for line in lines if line.startswith("command"))
    assert shlex.split(command)[1:] == ["python", "a b.py"]
    assert [line.split() for line in lines if line.startswith(("variable", "unset"))] == [
        ["variable", "A=1"],
        ["variable", "B=2"],
        ["unset", "RANK"],
    ]


def test_private_variables_reach_the_process_and_no_description():
    plan = LaunchPlan("local", (PROCESS,), num_ranks=1).with_private({"A": "3", "TOKEN": "hush"})
    (process,) = plan.processes
    assert process.environ_on({})["TOKEN"] == "hush"
    assert process.environ_on({})["A"] == "3"
    shown = plan.describe() + str(plan.to_dict()) + repr(plan)
    assert "hush" not in shown
    assert "variable     TOKEN (not shown)" in shown


@pytest.mark.parametrize(
    ("port", "file", "told"),
    [(None, None, ["port         a free one"]), (1, Path("/r"), ["port         1", "report       /r"])],
)
def test_describe_reports_where_ranks_meet_and_where_the_report_goes(port, file, told):
    rank = PROCESS.with_variables(MASTER_ADDR="127.0.0.1")
    lines = LaunchPlan("local", (rank,), num_ranks=1, port=port, report=file).describe().splitlines()
    assert lines[2 : lines.index("")] == told
