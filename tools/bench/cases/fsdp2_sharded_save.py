"""How long a sharded save of a model of 402 MB takes over two gloo processes, to the end on both of them.

What accel and torch (`sync_files=True`) write is on the disk then, as with Accelerate's variant with fsync.
"""

from tools.bench.case import Case
from tools.bench.sharded_saves import OURS, PEER, RAW, RAW_SAVE, TIMED, WITH_FSYNC, variant

KIND = "SHARDED"
PEER_OF_KIND = PEER.format(kind=KIND)

case = Case(
    title="a sharded save of 402 MB by two processes, the median of five",
    unit="s",
    variants={
        "raw DCP": variant(RAW + RAW_SAVE[KIND], TIMED),
        "ours": variant(OURS.format(kind=KIND), TIMED),
        "peer, fsync": variant(PEER_OF_KIND + WITH_FSYNC, TIMED),
        "peer": variant(PEER_OF_KIND, TIMED),
    },
    baseline="raw DCP",
)
