from __future__ import annotations

import pytest

from tools.gpu import fp8

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_the_script_for_a_gpu_runs_on_a_cpu_with_torchao(capsys):
    pytest.importorskip("torchao", reason="needs torchao")
    assert fp8.main(["--backend", "AO", "--cpu", "--small"]) == 0
    table = capsys.readouterr().out
    assert "tokens/s" in table
    assert "distance 0.0" in table
