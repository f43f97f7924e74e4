import textwrap

import pytest

from accel_backends.plugins.deepspeed.loading import OLDEST_RELEASE
from tools.harness.scripts import run_script

SCRIPT = """
from accel_backends.plugins.deepspeed.loading import load_deepspeed
from accel_state.errors import NotAvailableError
from accel_state.runtime import current_runtime
from accel_state import PartialState

PartialState(cpu=True)
try:
    print(load_deepspeed(current_runtime()).__name__)
except NotAvailableError as error:
    print(error)
"""
STAND_IN = """
__version__ = {version!r}


def get_accelerator():
    from types import SimpleNamespace

    return SimpleNamespace(device_name=lambda: "cpu")
"""


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (
            "0.18.8",
            f"DeepSpeed 0.18.8 is installed, but {OLDEST_RELEASE} or newer is needed. Run `pip install --upgrade",
        ),
        ("0.9.5", "DeepSpeed 0.9.5 is installed"),
        (OLDEST_RELEASE, "deepspeed\n"),
        ("0.19.10+local", "deepspeed\n"),
    ],
)
def test_a_release_of_deepspeed_that_is_too_old_is_refused(tmp_path, version, said):
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text(STAND_IN.format(version=version))
    (tmp_path / f"deepspeed-{version}.dist-info").mkdir()
    (tmp_path / f"deepspeed-{version}.dist-info" / "METADATA").write_text(
        f"Name: deepspeed\nVersion: {version}\n"
    )
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = run_script(script, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
