"""Every schedule takes each micro-batch through each stage and back, and no rank waits for ever."""

import pytest

from accel_backends.pipeline.schedules import SCHEDULES, Pass, ScheduleArgs, zero_bubble

SHARES = [
    (name, num_ranks, stages_per_rank)
    for name in SCHEDULES
    for num_ranks in range(2, 9)
    for stages_per_rank in ((1,) if name in ("gpipe", "1f1b") else (1, 2, 3))
]


def is_possible(action, done, last):
    key = (action.stage, action.micro_batch)
    if action.kind is Pass.FORWARD:
        return action.stage == 0 or (Pass.FORWARD, action.stage - 1, action.micro_batch) in done
    if action.kind is Pass.BACKWARD_WEIGHT:
        return (Pass.BACKWARD_INPUT, *key) in done
    follows = (action.kind, action.stage + 1, action.micro_batch)
    return (Pass.FORWARD, *key) in done and (action.stage == last or follows in done)


@pytest.mark.parametrize(("name", "num_ranks", "stages_per_rank"), SHARES)
def test_a_schedule_runs_to_its_end_with_any_number_of_micro_batches(name, num_ranks, stages_per_rank):
    last = num_ranks * stages_per_rank - 1
    for num_micro_batches in range(1, 14):
        shares = [
            ScheduleArgs(rank, num_ranks, stages_per_rank, num_micro_batches) for rank in range(num_ranks)
        ]
        left = [SCHEDULES[name](share) for share in shares]
        kinds = {action.kind for action in left[0]}
        done = set()
        while any(left):
            before = len(done)
            for actions in left:
                while actions and is_possible(actions[0], done, last):
                    action = actions.pop(0)
                    done.add((action.kind, action.stage, action.micro_batch))
            assert len(done) > before
        assert len(done) == len(kinds) * (last + 1) * num_micro_batches


def test_zero_bubble_lets_no_stage_before_wait_for_gradients_of_parameters():
    actions = zero_bubble(ScheduleArgs(1, 2, 1, 3))
    assert [action.kind for action in actions[:5]] == [
        Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT,
    ]  # fmt: skip
