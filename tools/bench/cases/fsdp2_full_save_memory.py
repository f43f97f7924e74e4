"""Memory that a full save of a model of 402 MB takes that two gloo processes share: of the writer, and of the other.

The highest resident memory (VmHWM, which the kernel keeps and which is reset before) over that at the start. The
largest tensor has 8 MiB.
"""

from tools.bench.case import Case
from tools.bench.sharded_saves import MEASURED, OURS, PEER, RAW, RAW_SAVE, variant

PREPARED = {"raw": RAW + RAW_SAVE["FULL"], "ours": OURS.format(kind="FULL"), "peer": PEER.format(kind="FULL")}

case = Case(
    title="memory that a full save of 402 MB takes above the start, by rank (the largest tensor: 8 MiB)",
    unit="MiB",
    variants={
        f"{name}, {who}": variant(prepared, MEASURED.format(rank=rank))
        for name, prepared in PREPARED.items()
        for rank, who in enumerate(("writer", "other"))
    },
    baseline="ours, writer",
)
