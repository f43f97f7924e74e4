from __future__ import annotations

import pytest

from accel_state.availability import deepspeed_required, torchao_required
from accel_state.errors import NotAvailableError


@pytest.mark.parametrize(
    ("decorator", "name"), [(deepspeed_required, "deepspeed"), (torchao_required, "torchao")]
)
@pytest.mark.usefixtures("nothing_installed")
def test_a_call_is_refused_where_the_package_is_missing(decorator, name):
    @decorator
    def train() -> str:
        raise AssertionError("called")

    with pytest.raises(
        NotAvailableError, match=rf"train` needs `{name}`. `{name}` is not installed. Run `pip install"
    ):
        train()
    assert train.__name__ == "train"


def test_a_call_goes_through_where_the_package_is_there(tmp_path, monkeypatch):
    info = tmp_path / "torchao-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchao\nVersion: 99.0\n")
    (tmp_path / "torchao.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert torchao_required(lambda value, *, more: (value, more))(1, more=2) == (1, 2)
