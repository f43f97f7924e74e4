"""Check the table of engines against the strategies' declarations and the tests; ``--update`` rewrites it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from accel_backends.strategies.capabilities import Capabilities, Feature
from accel_backends.strategies.selection import STRATEGIES, why_not_on
from accel_state.devices import known_vendors
from tools.checks.engine_evidence import EVIDENCE, ON_DEVICES, UNTESTED
from tools.checks.tables import if_old, run_check
from tools.gpu.results import STORED, read
from tools.workspace import ROOT

PAGE = Path("docs") / "reference" / "engines.md"
BEGIN = "<!-- the tables begin -->\n"
END = "<!-- the tables end -->\n"


@dataclass(frozen=True, slots=True)
class Row:
    """An ability of a strategy.

    Attributes:
        feature: Its name.
        is_declared: Whether a strategy with these capabilities does it.
        of_several: Whether it needs several processes.
    """

    feature: str
    is_declared: Callable[[Capabilities], bool]
    of_several: bool = False


def _always(capabilities: Capabilities) -> bool:
    return True


def _unless_it_lacks(feature: Feature) -> Callable[[Capabilities], bool]:
    return lambda capabilities: feature not in capabilities.lacks


def _by_axis(axis: str) -> Callable[[Capabilities], bool]:
    return lambda capabilities: axis in capabilities.mesh_axes


def _computes_in(precision: str) -> Callable[[Capabilities], bool]:
    """Whether a device of the strategy supports a precision."""
    return lambda capabilities: any(
        precision in vendor.precisions
        for vendor in known_vendors()
        if why_not_on(vendor, capabilities) is None
    )


ROWS = (
    Row("accumulation", _always),
    Row("clipping by norm", _always),
    Row("clipping by value", _unless_it_lacks(Feature.CLIP_BY_VALUE)),
    Row("several models", _unless_it_lacks(Feature.SEVERAL_MODELS)),
    Row("accumulation over several models", _unless_it_lacks(Feature.SEVERAL_MODELS)),
    Row("resuming bit for bit", _always),
    Row("`save_model` in parts", _unless_it_lacks(Feature.SAVE_MODEL)),
    Row("`torch.compile`", _unless_it_lacks(Feature.COMPILE)),
    Row("CPU offload", lambda capabilities: capabilities.shards_parameters),
    Row("meta-device initialization", lambda capabilities: capabilities.shards_parameters),
    Row("replicas (`dp_replicate_size`)", _by_axis("dp_replicate"), of_several=True),
    Row("sharded parameters (`dp_shard_size`)", _by_axis("dp_shard"), of_several=True),
    Row("tensor parallelism (`tp_size`)", _by_axis("tp"), of_several=True),
    Row("context parallelism (`cp_size`)", _by_axis("cp"), of_several=True),
    Row("sequence parallelism (`sp_size`)", _by_axis("sp"), of_several=True),
    Row("expert parallelism (`ep_size`)", _by_axis("ep"), of_several=True),
    Row("pipeline parallelism (`pp_size`)", _by_axis("pp"), of_several=True),
    Row("uneven inputs (`join_uneven_inputs`)", _unless_it_lacks(Feature.JOIN), of_several=True),
    Row("local SGD", _unless_it_lacks(Feature.LOCAL_SGD), of_several=True),
    Row("communication hooks", _unless_it_lacks(Feature.COMMUNICATION_HOOK), of_several=True),
    Row("bf16", _computes_in("bf16")),
    Row("fp16", _computes_in("fp16")),
    Row(
        "fp8", lambda capabilities: capabilities.takes_exchanged_layers and _computes_in("fp8")(capabilities)
    ),
)


def with_tables(page: str) -> str:
    """Return the page with the tables as code and tests have them now."""
    before, found, rest = page.partition(BEGIN)
    _, also, after = rest.partition(END)
    if not (found and also):
        raise ValueError(
            f"{PAGE} has no place for the tables, between `{BEGIN.strip()}` and `{END.strip()}`."
        )
    return f"{before}{BEGIN}\n{''.join(_lines())}\n{END}{after}"


def problems(root: Path) -> list[str]:
    """Return the problems: cells that nothing backs, tests that are not there, a page that is not current."""
    return [
        *_unbacked(),
        *_missing(root),
        *if_old(root, PAGE, with_tables, what="engines", check="engine_table"),
    ]


def _strategies() -> dict[str, Capabilities]:
    return {name: STRATEGIES.get(name)().capabilities for name in sorted(STRATEGIES.names())}


def _declared() -> set[tuple[str, str]]:
    """Return strategy and feature of all that strategies are declared to do."""
    return {
        (name, row.feature)
        for name, capabilities in _strategies().items()
        for row in ROWS
        if row.is_declared(capabilities) and (capabilities.needs_collectives or not row.of_several)
    }


def _unbacked() -> Iterator[str]:
    """Yield abilities that are declared but neither shown nor known to be untested, and the reverse."""
    place = "tools/checks/engine_evidence.py"
    shown = {(strategy, feature) for strategy, features in EVIDENCE.items() for feature in features}
    declared, untested = _declared(), set(UNTESTED)
    for strategy, feature in sorted(declared - shown - untested):
        yield f"{place}: no test backs `{strategy}` with {feature}. Name one in EVIDENCE, or a reason in UNTESTED."
    for strategy, feature in sorted((shown | untested) - declared):
        yield f"{place}: `{strategy}` is not declared to do {feature}. Remove it."
    for strategy, feature in sorted(shown & untested):
        yield f"{place}: `{strategy}` with {feature} is in EVIDENCE and in UNTESTED. Remove it from UNTESTED."


def _missing(root: Path) -> Iterator[str]:
    """Yield tests and scripts that are not there."""
    named = {one for shown in (*EVIDENCE.values(), *ON_DEVICES.values()) for one in shown.values()}
    for one in sorted(named):
        file, _, test = one.partition("::")
        if not (root / file).is_file() or (test and test not in _tests_of(root / file)):
            yield f"tools/checks/engine_evidence.py: `{one}` is not there."


def _tests_of(file: Path) -> set[str]:
    """Return the tests of a file that are not skipped unconditionally."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and not any(
            ast.unparse(decorator).startswith("pytest.mark.skip(") for decorator in node.decorator_list
        )
    }


def _lines() -> Iterator[str]:
    strategies = _strategies()
    head = " | ".join(f"`{name}`" for name in strategies)
    yield f"| | {head} |\n{'|-' * (len(strategies) + 1)}|\n"
    for row in ROWS:
        cells = (_cell(name, row, capabilities) for name, capabilities in strategies.items())
        yield f"| {row.feature} | {' | '.join(cells)} |\n"
    yield f"\n## Devices\n\n| | {head} |\n{'|-' * (len(strategies) + 1)}|\n"
    for vendor in known_vendors():
        cells = (
            "no"
            if why_not_on(vendor, capabilities) is not None
            else _on_gpu(name)
            if vendor.name == "cuda"
            else "yes"
            if vendor.name in ON_DEVICES.get(name, {})
            else "not run"
            for name, capabilities in strategies.items()
        )
        yield f"| `{vendor.name}` | {' | '.join(cells)} |\n"


def _cell(strategy: str, row: Row, capabilities: Capabilities) -> str:
    if row.of_several and not capabilities.needs_collectives:
        return ""
    if not row.is_declared(capabilities):
        return "no"
    evidence = EVIDENCE.get(strategy, {}).get(row.feature)
    return "untested" if evidence is None else "yes"


def _on_gpu(strategy: str) -> str:
    """Return the results of the last GPU runs for a strategy, first of its own test."""
    test = ON_DEVICES.get(strategy, {}).get("cuda", "-")
    rows = [row for row in read(ROOT / STORED) if "row" in row and row["ok"] is not None]
    chosen = [row for row in rows if row["row"].partition("[")[0] == test] or [
        row for row in rows if row.get("strategy") == strategy
    ]
    if not chosen:
        return "not run"
    return "yes" if all(row["ok"] for row in chosen) else "wrong"


if __name__ == "__main__":
    sys.exit(run_check(PAGE, with_tables, problems))
