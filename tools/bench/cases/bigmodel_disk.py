"""Disk space of offloading 0.8 GB of safetensors, in addition to the checkpoint."""

from tools.bench.case import Case
from tools.bench.cases.bigmodel_forward import DISK, variant
from tools.bench.cases.bigmodel_load import PREPARE

STORED = "stored / 2**20"

case = Case(
    title="disk taken by offloading 0.8 GB of safetensors",
    unit="MiB",
    variants={
        "peer": variant("accelerate", DISK, STORED),
        "ours": variant("accel_bigmodel", DISK, STORED),
    },
    baseline="peer",
    prepare=PREPARE,
)
