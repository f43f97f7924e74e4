import json

import pytest

from tools.bench.growth import LIMIT, NAMES, count_calls, exponent_of
from tools.harness.scripts import run_script
from tools.workspace import ROOT

SCRIPT = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from tools.bench.growth import measured
print(json.dumps({{name: [*measured(name).calls] for name in sys.argv[1:]}}))
"""
CONSTANT = ("store_round",)
# The order of an epoch is a list.
LINEAR = (
    "first_batch",
    "skipped_batches",
    "train_step",
    "load_and_dispatch",
    "gather",
    "device_map",
    "device_mesh",
)


def calls_of(work):
    return exponent_of([count_calls(lambda size=size: work(size)) for size in (20, 40, 80)])


def test_a_loop_in_a_loop_is_seen_beside_a_large_constant():
    def quadratic(size):
        for _ in range(30_000):
            abs(1)
        for _ in range(size * size):
            abs(1)

    assert calls_of(quadratic) == pytest.approx(2, abs=0.01)
    assert calls_of(lambda size: [abs(1) for _ in range(5 * size)]) == pytest.approx(1, abs=0.01)
    assert calls_of(lambda _: [abs(1) for _ in range(5000)]) == 0


def test_what_users_call_is_at_most_linear(tmp_path):
    script = tmp_path / "growth.py"
    script.write_text(SCRIPT)
    calls = json.loads(run_script(script, *CONSTANT, *LINEAR).stdout.splitlines()[-1])
    exponents = {name: exponent_of(numbers) for name, numbers in calls.items()}
    assert {name: exponents[name] for name in CONSTANT} == dict.fromkeys(CONSTANT, 0.0), calls
    assert {name: one for name, one in exponents.items() if one > LIMIT} == {}, calls
    assert set(NAMES) > set(calls)
