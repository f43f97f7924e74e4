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
def run(pytester):
    """Run tests of the given source beside our conftest.py, in this process."""
    pytester.makeconftest(CONFTEST.read_text())
    options = "--strict-markers -p no:randomly -p no:hypothesispytest"
    pytester.makeini(f"[pytest]\nmarkers =\n    engine(name)\n    gpu\n    slow\naddopts = {options}")

    def run_tests(source, *options):
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess(*options)

    return run_tests


def test_an_ordinary_run_leaves_out_the_tests_of_engines_and_says_how_to_run_them(run):
    result = run(TESTS)
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines("Tests of engines, run with --engine NAME: mpich 1, openmpi 1, slurm 1")


@pytest.mark.parametrize(("engines", "passed"), [(["slurm"], 1), (["mpich"], 1), (["openmpi", "slurm"], 2)])
def test_engines_that_are_asked_for_run_alone(run, engines, passed):
    result = run(TESTS, *(f"--engine={name}" for name in engines))
    result.assert_outcomes(passed=passed, deselected=4 - passed)
    result.stdout.no_fnmatch_line("Tests of engines*")


def test_an_engine_without_tests_is_an_error_that_names_the_others(run):
    result = run(TESTS, "--engine=slrum")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*marked with the engine `slrum`. Marked are: mpich, openmpi, slurm.")


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\n@pytest.mark.skip(reason='no luck')\ndef test_it(): pass",
        "import pytest\n@pytest.mark.skipif(True, reason='no luck')\ndef test_it(): pass",
        "import pytest\ndef test_it(): pytest.skip('no luck')",
        "import pytest\n@pytest.fixture\ndef part(): pytest.skip('no luck')\ndef test_it(part): pass",
        "import pytest\npytest.skip('no luck', allow_module_level=True)",
        "import pytest\npytest.importorskip('not_there', reason='no luck')",
    ],
    ids=["mark", "condition", "call", "fixture", "module", "import"],
)
def test_an_unexpected_skip_fails_the_run_and_is_listed(run, source):
    source += "\ndef test_plain(): pass"
    assert run(source).ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    result = run(source, "--no-unexpected-skips")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines("test_an_unexpected_skip_*: no luck")


def test_a_skipped_test_of_an_engine_fails_its_run(run):
    source = "import pytest\n@pytest.mark.engine('slurm')\ndef test_it(): pytest.skip('not installed')"
    assert run(source, "--engine=slurm").ret == pytest.ExitCode.TESTS_FAILED


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
def test_of_none(): pass
"""


@pytest.mark.leaks_environment("ACCEL_TEST_DEVICE")
@pytest.mark.parametrize(
    ("device", "options", "outcome"),
    [("", [], {"passed": 2, "skipped": 1}), ("cuda", ["-m", "gpu"], {"passed": 2, "deselected": 1})],
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
