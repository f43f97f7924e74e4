"""How long many ranks need to agree on a save, or on the step to stop after; over one real TCPStore."""

from __future__ import annotations

from tools.bench.case import Case

_RANKS = """
import threading, time
from datetime import timedelta
from torch.distributed import PrefixStore, TCPStore
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
def connections(num_ranks):
    return [TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False) for _ in range(num_ranks)]
def last_of(threads):
    begun = time.monotonic()
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return time.monotonic() - begun
"""

_SAVE = (
    _RANKS
    + """
from accel_checkpoint.manifest import FileEntry
from accel_checkpoint.ranks.agreement import StoreAgreement
from accel_checkpoint.ranks.reports import RankReport, verdict_on
class Present:
    def ended(self, ranks): return []
def merge(texts):
    return verdict_on([RankReport.decode(text) for text in texts], target="/a").encode()
def save(store, rank, num_ranks):
    agreement = StoreAgreement(store, rank=rank, world_size=num_ranks, deadline_s=60, presence=Present())
    files = [FileEntry(f"random_states_{rank}.pkl", 14000, "crc32:00000000", rank)]
    report = RankReport("/a", 0, rank // 8, files=files).encode()
    for stage in ("written", "committed"):
        agreement.agree(stage, report, merge)
"""
)

_MEASURE = """
stores = connections({ranks})
print(last_of([threading.Thread(target=save, args=(stores[r], r, {ranks})) for r in range({ranks})]))
"""

_STOP = (
    _RANKS
    + """
from accel.stop_agreement import StopAgreement
stores = connections({ranks})
def stop(rank):
    return StopAgreement(stores[rank], rank=rank, world_size={ranks}, grace_period_s=None, exit_code=75)
agreements = [stop(rank) for rank in range({ranks})]
begun = time.monotonic()
agreements[{ranks} // 2].ask()
for one in agreements: one._answered.wait(60)
print(time.monotonic() - begun)
for one in agreements:
    one.advance()
    assert one.is_agreed
"""
)

case = Case(
    title="two rounds of a save, or one of a stop, from the first report until the last rank has the verdict",
    unit="s",
    variants={
        "save, 1,024 ranks": _SAVE + _MEASURE.replace("{ranks}", "1024"),
        "save, 64 ranks": _SAVE + _MEASURE.replace("{ranks}", "64"),
        "stop, 1,024 ranks": _STOP.replace("{ranks}", "1024"),
    },
    baseline="save, 64 ranks",
)
