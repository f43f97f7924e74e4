"""The root's conftest.py: tests of engines or of an accelerator, slow files, and skips that nobody expected."""

from pathlib import Path

import pytest
import torch  # before any run in this process: each forgets the modules that it was the first to import

from accel_state.environment import variable

pytest_plugins = "pytester"
CONFTEST = Path(__file__).resolve().parents[2] / "conftest.py"
TESTS = """
import pytest

@pytest.mark.engine("slurm")
def test_slurm():
    pass

@pytest.mark.parametrize("mpi", [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("openmpi", "mpich")])
def test_mpi(mpi):
    pass

def test_plain():
    pass
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Run tests of the given source beside our conftest.py, in this process, without plug-ins of libraries."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\nmarkers =\n    engine(name)\n    gpu\n    slow\naddopts = --strict-markers")

    def run_tests(source, *options):
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess(*options)

    return run_tests


def test_an_ordinary_run_leaves_out_the_tests_of_engines_which_run_alone(run):
    result = run(TESTS)
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines("Tests of engines, run with --engine NAME: mpich 1, openmpi 1, slurm 1")
    run(TESTS, "--engine=openmpi", "--engine=slurm").assert_outcomes(passed=2, deselected=2)
    assert run(TESTS, "--engine=slrum").ret == pytest.ExitCode.USAGE_ERROR


def test_the_summary_names_what_failed_in_earlier_parts_of_ci(run, monkeypatch):
    monkeypatch.setenv("EARLIER_FAILURES", "  megatron  FAILED (pytest exit 1)")
    result = run(TESTS)
    result.stdout.fnmatch_lines(
        ["*failed before these tests*", "  megatron  FAILED (pytest exit 1)", "*1 passed*"]
    )


@pytest.mark.parametrize(
    ("source", "option"),
    [
        ("@pytest.mark.skip(reason='no luck')\ndef test_it(): pass", "--no-unexpected-skips"),
        ("pytest.importorskip('not_there', reason='no luck')", "--no-unexpected-skips"),
        ("@pytest.mark.engine('slurm')\ndef test_it(): pytest.skip('no luck')", "--engine=slurm"),
    ],
    ids=["mark", "import", "engine"],
)
def test_an_unexpected_skip_fails_the_run_and_is_listed(run, source, option):
    result = run(f"import pytest\n{source}\ndef test_plain(): pass", option)
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines("test_an_unexpected_skip_*: no luck")


def test_expected_skips_and_expected_failures_pass(run):
    source = """
    import pytest
    def test_skipped(): pytest.skip('needs a TPU of four cores')
    @pytest.mark.xfail
    def test_failing(): assert False
    """
    result = run(source, "--no-unexpected-skips")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(skipped=1, xfailed=1)


DEVICE_TESTS = """
import pytest
@pytest.mark.gpu
def test_of_a_gpu(): pass
@pytest.fixture
def device(): pass
def test_of_any_device(device): pass
@pytest.mark.engine("long")
def test_that_takes_long(device): pass
def test_of_none(): pass
"""


@pytest.mark.leaks_environment("ACCEL_TEST_DEVICE")
@pytest.mark.parametrize(
    ("device", "options", "outcome"),
    [
        ("", [], {"passed": 2, "skipped": 1, "deselected": 1}),
        ("cuda", ["-m", "gpu"], {"passed": 3, "deselected": 1}),
    ],
)
def test_tests_of_a_device_run_on_the_cpu_and_in_a_second_pass_on_it(
    run, monkeypatch, device, options, outcome
):
    monkeypatch.setenv("ACCEL_TEST_DEVICE", device)
    result = run(DEVICE_TESTS, "--no-unexpected-skips", *options)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(**outcome)


def test_no_test_sees_an_accelerator_of_the_machine():
    assert variable("CUDA_VISIBLE_DEVICES") == ""
    assert not torch.accelerator.is_available()


def test_files_with_slow_tests_or_shared_jobs_come_first_and_stay_together(run, pytester):
    pytester.makepyfile(
        test_1="def test_plain(): pass",
        test_2="import pytest\ndef test_quick(): pass\n@pytest.mark.slow\ndef test_slow(): pass",
        test_3="def test_plain(): pass",
        test_4="import pytest\n@pytest.fixture\ndef outcome(): pass\ndef test_job(outcome): pass",
    )
    result = run("def test_last(): pass", "-v")
    order = [line.split(".py")[0] for line in result.stdout.lines if ".py::" in line]
    assert order[:5] == ["test_2", "test_2", "test_4", "test_1", "test_3"]
