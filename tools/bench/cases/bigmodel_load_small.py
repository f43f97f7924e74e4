"""Loading 24,576 small tensors into a skeleton, from a warm page cache."""

from tools.bench.case import Case
from tools.bench.cases.bigmodel_load import NONE, PREPARE, assigned, loaded

case = Case(
    title="load 24,576 small tensors into a skeleton",
    unit="s",
    variants={
        "assign": assigned("small", NONE),
        "ours": loaded("accel_bigmodel", "small", NONE),
        "ours mapped": loaded("accel_bigmodel", "small", NONE, ", mmap=True"),
        "peer": loaded("accelerate", "small", NONE),
    },
    baseline="assign",
    prepare=PREPARE,
)
