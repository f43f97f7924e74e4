"""Loading 0.8 GB into a skeleton from disk: the page cache has nothing of the files."""

from tools.bench.case import Case
from tools.bench.cases.bigmodel_load import ALL, ASSIGN, LOAD, PLACE, PREPARE, READ, THRICE

# Only pages that are on the disk already are dropped from the cache.
COLD = """
import os
def drop(path):
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
from_warm = measured
def measured():
    for path in (root / "large").glob("*.safetensors"):
        drop(path)
    return from_warm()
"""


def cold(source: str, **names: str) -> str:
    """Return a variant that measures ``source`` after its files were dropped from the page cache."""
    return PLACE + (source.format(build="large", touch=ALL, **names) if names else source) + COLD + THRICE


case = Case(
    title="load 0.8 GB into a skeleton from a cold disk, all bytes touched",
    unit="s",
    variants={
        "read": cold(READ),
        "assign": cold(ASSIGN, package=""),
        "ours": cold(LOAD, package="accel_bigmodel", more=""),
        "ours mapped": cold(LOAD, package="accel_bigmodel", more=", mmap=True"),
        "peer": cold(LOAD, package="accelerate", more=""),
    },
    baseline="read",
    prepare=PREPARE,
)
