"""One tensor of 64 MiB between two gloo processes on this machine."""

from tools.bench.case import Case
from tools.bench.cases.large_tensors import variants

case = Case(
    title="1 tensor of 64 MiB between two gloo processes",
    unit="µs",
    variants=variants(num_tensors=1, num_elements=1 << 24),
    baseline="flat gather",
)
