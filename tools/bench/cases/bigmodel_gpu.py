"""Tokens per second of a model four times the GPU memory it is given, the rest in the memory of the host."""

from tools.bench.case import Case

RUN = """
import pathlib, tempfile
from tools.bench.offloaded_generation import ON_GPU, measured
print(measured("{variant}", ON_GPU, pathlib.Path(tempfile.gettempdir(), "accel-bench-bigmodel", "gpu")))
"""

NO_GPU = """
import torch
print("" if torch.cuda.is_available() else "no GPU here")
"""

case = Case(
    title="a model four times the GPU memory it is given (8.6 GB of bfloat16), batch 1",
    unit="tokens/s",
    variants={
        "bus": RUN.format(variant="bus"),
        "resident": RUN.format(variant="resident"),
        "ours": RUN.format(variant="accel_bigmodel"),
        "peer": RUN.format(variant="accelerate"),
    },
    baseline="bus",
    obstacle=NO_GPU,
)
