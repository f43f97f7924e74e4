from pathlib import Path

import pytest

from tools.setup.failures import SetupError, explain_pip_failure, require_free_space

LOG = Path("build/logs/pip-venv.log")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "The disk is full",
        ),
        (
            "WARNING: Retrying (Retry(total=0)) after NewConnectionError\nERROR: No matching",
            "index is unreachable",
        ),
        ("WARNING: [Errno -3] Temporary failure in name resolution", "index is unreachable"),
        ("ERROR: Ignored versions\nERROR: No matching distribution found for torch==9", "found for torch==9"),
        ("something else", "pip gave no reason"),
    ],
)
def test_a_failure_of_pip_is_told_in_one_line_with_the_log(output, message):
    line = explain_pip_failure(output, LOG)
    assert message in line
    assert "\n" not in line
    assert line.endswith(f"Log: {LOG}") or f"Log: {LOG}" in line


def test_a_disk_that_is_too_full_is_refused_before_the_work():
    with pytest.raises(SetupError, match=r"1\.0 GB free, an environment with torch needs about 2\.5 GB"):
        require_free_space(Path("x"), free_bytes=10**9, needed_bytes=25 * 10**8)
    require_free_space(Path("x"), free_bytes=25 * 10**8, needed_bytes=25 * 10**8)
