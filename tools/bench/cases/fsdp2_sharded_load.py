"""How long loading a sharded checkpoint of a model of 402 MB takes over two gloo processes, to the end on both of them.

Each reads its own files, from the page cache. accel also looks through its manifest.
"""

from tools.bench.case import Case
from tools.bench.sharded_saves import OURS, PEER, RAW, RAW_SAVE, TIMED_LOADS, variant

KIND = "SHARDED"

case = Case(
    title="loading a sharded checkpoint of 402 MB by two processes, the median of five",
    unit="s",
    variants={
        "raw DCP": variant(RAW + RAW_SAVE[KIND], TIMED_LOADS),
        "ours": variant(OURS.format(kind=KIND), TIMED_LOADS),
        "peer": variant(PEER.format(kind=KIND), TIMED_LOADS),
    },
    baseline="raw DCP",
)
