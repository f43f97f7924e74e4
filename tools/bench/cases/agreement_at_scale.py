"""How long many ranks need to agree on a save, or on the step to stop after; over one real TCPStore."""

from __future__ import annotations

from tools.bench.case import Case

_RANKS = """
import os, threading, time
# TCPStore looks up the name of each peer: do not wait 5 s, nor warn, if no name server answers.
os.environ |= {"RES_OPTIONS": "timeout:1 attempts:1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
from datetime import timedelta
from torch.distributed import TCPStore
NUM_RANKS, NUM_PROCESSES = {ranks}, min(16, {ranks})
def together(work):
    # Rank 0 has a separate process, as in a run; the other ranks are threads of a few processes.
    reading, writing = os.pipe()
    children = []
    for process in range(1, NUM_PROCESSES):  # before the server's thread, whose locks a fork would copy
        if (child := os.fork()) == 0:
            run(process, range(process, NUM_RANKS, NUM_PROCESSES - 1), int(os.read(reading, 8)), work)
            os._exit(0)
        children.append(child)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300))
    os.write(writing, f"{server.port:8}".encode() * len(children))
    run(0, [0], server.port, work)
    for child in children:
        os.waitpid(child, 0)
    times = [float(server.get(f"{what}/{process}")) for what in ("begun", "ended") for process in range(NUM_PROCESSES)]
    print(max(times[NUM_PROCESSES:]) - min(times[:NUM_PROCESSES]))
def run(process, ranks, port, work):
    stores = [TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False) for _ in ranks]
    bodies = [work(store, rank) for store, rank in zip(stores, ranks)]
    stores[0].add("ready", 1)
    while stores[0].add("ready", 0) < NUM_PROCESSES: time.sleep(0.01)
    stores[0].set(f"begun/{process}", str(time.monotonic()))
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    stores[0].set(f"ended/{process}", str(time.monotonic()))
"""

_SAVE = """
import json
from dataclasses import asdict
from accel_checkpoint.files import FileEntry
from accel_checkpoint.ranks.agreement import StoreAgreement
from accel_checkpoint.saving.transaction import Report, error_in
class Present:
    num_bytes = 0
    def ended(self, ranks): return []
def merge(texts):
    return json.dumps(error_in([Report(**json.loads(text)) for text in texts]))
def save(store, rank):
    agreement = StoreAgreement(store, rank=rank, world_size=NUM_RANKS, deadline_s=60, presence=Present())
    files = [FileEntry(f"random_states_{rank}.pkl", 14000, "crc32:00000000", rank)]
    report = json.dumps(asdict(Report("/a", 0, rank // 8, files=files)))
    return lambda: agreement.agree("written", report, merge)
together(save)
"""

_STOP = """
from accel.preemption import PreemptionSync
def stop(store, rank):
    one = PreemptionSync(store, rank=rank, world_size=NUM_RANKS, grace_period_s=None, exit_code=75)
    def wait():
        if rank == NUM_RANKS - 1: one.ask()
        one._settled.wait(60)
        one.advance()
        assert one.is_agreed
    return wait
together(stop)
"""

case = Case(
    title="a round of a save, or of a stop, from the first report until the last rank has the verdict",
    unit="s",
    variants={
        "save, 1,024 ranks": (_RANKS + _SAVE).replace("{ranks}", "1024"),
        "save, 64 ranks": (_RANKS + _SAVE).replace("{ranks}", "64"),
        "stop, 1,024 ranks": (_RANKS + _STOP).replace("{ranks}", "1024"),
    },
    baseline="save, 64 ranks",
)
