"""How long until an ``Accelerator`` with a DeepSpeed plugin is constructed, beyond the import of torch."""

from tools.bench.case import Case
from tools.bench.deepspeed_engines import NO_DEEPSPEED, SETTING, accelerator_of

ONE_RANK = """
import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ |= {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
}
import time
import torch
import torch.distributed
begun = time.perf_counter()
"""

RAW = """
import deepspeed
torch.distributed.init_process_group("gloo")
"""

END = """
print((time.perf_counter() - begun) * 1e3, flush=True)
"""


def source(build: str) -> str:
    """Return a variant."""
    return "".join(["STAGE = 2\n", SETTING, ONE_RANK, build, END])


case = Case(
    title="import the package and DeepSpeed, build an Accelerator with the plugin, after `import torch`",
    unit="ms",
    variants={
        "raw": source(RAW),
        "ours": source(accelerator_of("accel")),
        "peer": source(accelerator_of("accelerate")),
    },
    baseline="raw",
    obstacle=NO_DEEPSPEED,
)
