from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accel_ops.frames import HEADER_BYTES, FrameHistory, FrameTable, exchange, exchange_bytes
from accel_ops.transport import current_transport

DIGEST = b"d" * 16


def test_the_size_grows_with_the_payloads_and_shrinks_when_they_are_forgotten():
    history = FrameHistory(world_size=2)
    before = history.frame_bytes()
    history.record(30_000)
    assert history.frame_bytes() >= 30_000 + HEADER_BYTES
    for _ in range(16):
        history.record(10)
    assert history.frame_bytes() < before


def test_payloads_too_large_for_any_frame_make_frames_small():
    history = FrameHistory(world_size=2)
    for _ in range(16):
        history.record(1 << 30)
    assert history.frame_bytes() == 256


def test_all_ranks_together_never_receive_more_than_two_mebibytes_of_frames():
    for world_size in (2, 64, 1024):
        history = FrameHistory(world_size=world_size)
        for payload in (3_000, 30_000, 200_000):
            history.record(payload)
        assert history.frame_bytes() * world_size <= max(1 << 21, 4096 * world_size)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.binary(max_size=300) | st.integers(0, 600_000).map(bytes), min_size=2, max_size=2),
        max_size=8,
    )
)
def test_ranks_never_disagree_on_the_wire_whatever_they_send(make_ranks, rounds):
    # The transport raises if two ranks make different calls.
    def body(rank: int) -> list[list[bytes]]:
        return [exchange_bytes(current_transport(), digest=DIGEST, payload=sent[rank])[1] for sent in rounds]

    assert make_ranks(2).run(body) == [rounds, rounds]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5_000), st.integers(0, 5_000)), max_size=10))
def test_disagreements_leave_the_ranks_in_step(make_ranks, rounds):
    def body(rank: int) -> list[bool]:
        results = []
        for is_same, *sizes in rounds:
            digest = DIGEST if is_same else bytes([rank]) * 16
            seen, _ = exchange_bytes(current_transport(), digest=digest, payload=bytes(sizes[rank]))
            results.append(seen.agrees)
        return results

    assert make_ranks(2).run(body) == [[is_same for is_same, *_ in rounds]] * 2


def test_the_largest_payload_of_any_rank_decides_on_the_next_frame(make_ranks):
    ranks = make_ranks(2)

    def body(rank: int) -> list[bool]:
        payload = bytes(20_000 * rank)
        return [
            exchange_bytes(current_transport(), digest=DIGEST, payload=payload)[0].rides for _ in range(2)
        ]

    assert ranks.run(body) == [[False, True]] * 2


def test_a_payload_that_fits_rides_along(make_ranks):
    def body(rank: int) -> tuple[bool, list[int]]:
        payload = bytes([rank + 1] * 4)
        seen = exchange(
            current_transport(), digest=DIGEST, payload_bytes=4, write=lambda frames: frames.put(payload)
        )
        return seen.rides, seen.frames.payloads[:, :4].sum(1).tolist()

    ranks = make_ranks(3)
    assert ranks.run(body) == [(True, [4, 8, 12])] * 3
    assert len(ranks.transports[0].calls) == 1


def test_what_was_made_for_a_table_is_made_anew_for_the_next():
    table = FrameTable(rank=0, world_size=1)
    made = []

    def make(frames: FrameTable) -> int:
        made.append(frames.frame_bytes)
        return len(made)

    table.begin(DIGEST, 0)
    assert [table.view(b"a", make), table.view(b"a", make), table.view(b"b", make)] == [1, 1, 2]
    table.begin(DIGEST, 30_000)
    table.end()
    table.begin(DIGEST, 0)
    assert table.view(b"a", make) == 3
    assert made[0] < made[2]
