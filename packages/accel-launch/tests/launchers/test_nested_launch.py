from __future__ import annotations

from accel_launch.launchers.nested_launch import variables_of_outer_run


def test_a_launch_within_a_rank_does_not_join_the_outer_run():
    environ = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "MASTER_PORT": "29500", "HOME": "/root"}
    assert set(variables_of_outer_run(environ)) == {"TORCHELASTIC_RUN_ID", "RANK", "MASTER_PORT"}


def test_ranks_that_a_scheduler_gave_are_kept():
    assert variables_of_outer_run({"RANK": "1", "WORLD_SIZE": "2"}) == ()
