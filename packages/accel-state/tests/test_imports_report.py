import json
import sys
from types import ModuleType

import pytest

from accel_state import imports_report
from accel_state.environment import patch_environment


@pytest.fixture
def first(monkeypatch):
    """Let this process report as if for the first time."""
    monkeypatch.setattr(imports_report, "is_due", True)


@pytest.mark.usefixtures("first")
def test_the_report_has_the_modules_with_files_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "made_at_run_time", ModuleType("made_at_run_time"))
    monkeypatch.setitem(sys.modules, "another_name", json)
    file = tmp_path / "imports.json"
    with patch_environment(accel_imports_report=str(file), accel_secret="of nobody else"):
        imports_report.report_imports("to_come")
    modules, environ = json.loads(file.read_text())
    assert environ["ACCEL_SECRET"] == imports_report.digest("of nobody else")
    assert "of nobody else" not in file.read_text()
    assert modules["to_come"] == ""
    assert modules["json"] == json.__file__
    assert modules["accel_state.imports_report"] == imports_report.__file__
    assert not {"made_at_run_time", "another_name", "sys"} & modules.keys()
    assert not imports_report.is_due
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("first")
def test_the_report_of_another_rank_stays(tmp_path):
    file = tmp_path / "imports.json"
    file.write_text("theirs")
    with patch_environment(accel_imports_report=str(file)):
        imports_report.report_imports()
    assert file.read_text() == "theirs"


@pytest.mark.usefixtures("first")
def test_without_the_variable_nothing_is_reported():
    imports_report.report_imports()
    assert not imports_report.is_due
