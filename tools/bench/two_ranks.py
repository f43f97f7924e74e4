"""Source that makes two processes of one."""

from __future__ import annotations

TWO_RANKS = """
import os, socket, sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
child = os.fork()
rank = 0 if child else 1
if rank:
    sys.stdout = open(os.devnull, "w")
os.environ |= {
    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "yes",
}
"""
"""Two processes from one: the following code runs in both, and `FAREWELL` lets the second one go first."""

FAREWELL = """
sys.stdout.flush()
if rank:
    os._exit(0)
os.waitpid(child, 0)
"""
