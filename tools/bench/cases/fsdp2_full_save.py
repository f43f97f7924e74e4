"""How long a full save of a model of 402 MB takes that two gloo processes share, to the end on both of them.

accel's files are on the disk then. Accelerate and torch leave them in the page cache; the variants with fsync do not.
"""

from tools.bench.case import Case
from tools.bench.sharded_saves import OURS, PEER, RAW, RAW_SAVE, TIMED, WITH_FSYNC, variant

KIND = "FULL"
PEER_OF_KIND = PEER.format(kind=KIND)

case = Case(
    title="a full save of 402 MB that two processes share, the median of five",
    unit="s",
    variants={
        "raw, fsync": variant(RAW + RAW_SAVE[KIND] + WITH_FSYNC, TIMED),
        "ours": variant(OURS.format(kind=KIND), TIMED),
        "peer, fsync": variant(PEER_OF_KIND + WITH_FSYNC, TIMED),
        "peer": variant(PEER_OF_KIND, TIMED),
    },
    baseline="peer, fsync",
)
