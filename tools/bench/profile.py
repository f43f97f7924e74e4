"""Time of the parts of a training step, each measured separately, in plain PyTorch and through accel."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from tools.bench.loops import DATA, SETTING, prepared

PARTS = ("loader", "enter", "forward", "backward", "optimizer", "scheduler", "zero_grad", "leave")
"""In the order of the step; `enter` and `leave` are those of `accumulate`, or of nothing."""

LOOP = """
import json
clock = time.perf_counter_ns
spent = [[] for _ in range(8)]
end = clock()
for number, (inputs, labels) in enumerate(loader, start=1):
    t0 = clock()
    block.__enter__() if block else None
    t1 = clock()
    loss = cross_entropy(model(inputs), labels)
    t2 = clock()
    backward(loss)
    t3 = clock()
    optimizer.step()
    t4 = clock()
    scheduler.step()
    t5 = clock()
    optimizer.zero_grad()
    t6 = clock()
    block.__exit__(None, None, None) if block else None
    t7 = clock()
    if number > 200:
        for part, duration in zip(spent, (t0 - end, t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4, t6 - t5, t7 - t6)):
            part.append(duration)
    end = clock()
print(json.dumps([sorted(part)[len(part) // 4] / 1e3 for part in spent]))
"""

VARIANTS = {
    "plain": SETTING + DATA + "backward, block = torch.Tensor.backward, None\n" + LOOP,
    "ours": SETTING + DATA + prepared("accel") + "block = accelerator.accumulate(model)\n" + LOOP,
}


def profile_step(*, num_rounds: int) -> dict[str, dict[str, float]]:
    """Return, by variant and part, the microseconds of one step: medians of rounds in separate processes."""
    rounds: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    for _ in range(num_rounds):
        for name, source in VARIANTS.items():
            done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
            rounds[name].append(json.loads(done.stdout))
    return {
        name: {part: statistics.median(values) for part, values in zip(PARTS, zip(*taken), strict=True)}
        for name, taken in rounds.items()
    }


def profile_table(spent: dict[str, dict[str, float]]) -> str:
    """Return what `profile_step` found as text, with the difference between the variants."""
    lines = ["time of the parts of a training step (µs)"]
    lines.append(f"  {'part':<10}{'plain':>9}{'ours':>9}{'more':>9}")
    for part in PARTS:
        plain, ours = spent["plain"][part], spent["ours"][part]
        lines.append(f"  {part:<10}{plain:>9.1f}{ours:>9.1f}{ours - plain:>+9.1f}")
    plain, ours = (sum(spent[name].values()) for name in ("plain", "ours"))
    lines.append(f"  {'sum':<10}{plain:>9.1f}{ours:>9.1f}{ours - plain:>+9.1f}")
    return "\n".join(lines)
