import pytest

from tools.checks.docstrings import problems

FILE = "packages/accel-ops/src/accel_ops/rows.py"
ERRORS = "packages/accel-state/src/accel_state/errors.py"


def test_a_tidy_checkout_is_fine(checkout):
    assert problems(checkout.root) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(x: torch.Tensor): 'On any device.'", "`f` has tensors; name their shape and device"),
        ("def f() -> list[Tensor]: 'Of any shape.'", "`f` has tensors"),
        ("class A:\n    def f(self, x: Tensor): ...", "`f` has tensors"),
        ("def f(): raise ConfigError('x')", "`f` raises ConfigError; add `Raises:`"),
        ("def f(): raise ConfigError.of('x')", "`f` raises ConfigError"),
        (
            "class A:\n    'Settings.'\n    def __post_init__(self): raise ConfigError('x')",
            "raises ConfigError",
        ),
        ("def f(): dist.barrier()", "`f` communicates; name the ranks that must call it"),
        ("from accel_ops.collectives import gather\ndef f(x): 'All of it.'; gather(x)", "`f` communicates"),
    ],
)
def test_a_public_docstring_that_leaves_something_out_is_reported(checkout, code, message):
    checkout.write(ERRORS, "class ConfigError(ValueError): ...\n")
    checkout.write(FILE, code + "\n")
    (problem,) = problems(checkout.root)
    assert message in problem


@pytest.mark.parametrize(
    "code",
    [
        "def f(x: Tensor): '``(batch, width)``, on any device.'",
        "def _f(x: Tensor): raise ConfigError('x')",
        "class _A:\n    def f(self, x: Tensor): ...",
        "class A(Base):\n    def f(self, x: Tensor): ...",
        "class A:\n    'Raises: x.'\n    def __post_init__(self): raise ConfigError('x')",
        "def f():\n    def g(): raise ConfigError('x')\n    return g",
        "def f(): raise OSError('x')",
        "def f(x):\n    'Rows.'\n    return x.gather(0), functools.reduce(max, x)",
        "def f(): 'Every rank must call it.'; dist.barrier()",
    ],
)
def test_complete_and_exempt_docstrings_pass(checkout, code):
    checkout.write(ERRORS, "class ConfigError(ValueError): ...\n")
    checkout.write(FILE, code + "\n")
    assert problems(checkout.root) == []
