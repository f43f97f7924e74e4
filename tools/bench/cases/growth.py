"""The exponents of `tools.bench.growth`, which are of counted calls: one round is enough."""

from tools.bench.case import Case
from tools.bench.growth import NAMES

case = Case(
    title="how the calls of a story grow: 1 is linear, 0 constant (calls: `python -m tools.bench.growth`)",
    unit="exponent of calls",
    variants={
        name: f"from tools.bench.growth import measured; print(measured({name!r}).exponent)" for name in NAMES
    },
    baseline="prepare",
)
