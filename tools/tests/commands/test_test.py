import pytest

from tools.commands.test import options_in_ci


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (None, []),
        ("", []),
        ("false", []),
        ("true", ["--no-unexpected-skips"]),
        ("1", ["--no-unexpected-skips"]),
    ],
)
def test_ci_accepts_no_unexpected_skips(monkeypatch, value, options):
    monkeypatch.delenv("CI", raising=False)
    if value is not None:
        monkeypatch.setenv("CI", value)
    assert options_in_ci() == options
