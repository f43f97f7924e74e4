from types import MappingProxyType

import pytest

from accel_backends.strategies.capabilities import Capabilities
from tools.checks import engine_table
from tools.workspace import ROOT


def test_every_cell_is_backed_and_the_page_is_current():
    assert engine_table.problems(ROOT) == []


def test_a_cell_without_a_test_or_a_reason_is_found(monkeypatch):
    shown = {name: dict(features) for name, features in engine_table.EVIDENCE.items()}
    del shown["ddp"]["local SGD"]
    monkeypatch.setattr(engine_table, "EVIDENCE", MappingProxyType(shown))
    assert "no test backs `ddp` with local SGD" in engine_table.problems(ROOT)[0]


def test_what_a_strategy_no_longer_declares_is_found(monkeypatch):
    shown = {**engine_table.EVIDENCE, "single": {**engine_table.EVIDENCE["single"], "local SGD": "README.md"}}
    monkeypatch.setattr(engine_table, "EVIDENCE", MappingProxyType(shown))
    assert "`single` is not declared to do local SGD. Remove it." in engine_table.problems(ROOT)[0]


@pytest.mark.parametrize("gone", ["tests/test_none.py", "tools/tests/checks/test_links.py::test_x"])
def test_a_test_that_is_not_there_is_found(monkeypatch, gone):
    shown = {**engine_table.EVIDENCE, "ddp": {**engine_table.EVIDENCE["ddp"], "local SGD": gone}}
    monkeypatch.setattr(engine_table, "EVIDENCE", MappingProxyType(shown))
    assert f"`{gone}` is not there." in engine_table.problems(ROOT)[0]


def test_a_new_strategy_is_asked_for_its_tests():
    names = {row.feature for row in engine_table.ROWS if row.is_declared(Capabilities())}
    assert {"accumulation", "local SGD", "bf16"} <= names
    assert not {"fp8", "tensor parallelism (`tp_size`)"} & names


def test_a_page_without_a_place_for_the_tables_is_an_error():
    with pytest.raises(ValueError, match="has no place for the tables"):
        engine_table.with_tables("# Engines\n")
