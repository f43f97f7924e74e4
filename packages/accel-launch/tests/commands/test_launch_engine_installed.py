import pytest

from accel_launch.commands.launch import check_engine_installed
from accel_launch.launchers.selection import select_launcher
from accel_state.availability import is_deepspeed_available
from accel_state.errors import NotAvailableError

pytestmark = pytest.mark.skipif(is_deepspeed_available(), reason="DeepSpeed is installed")


def test_ranks_that_would_lack_deepspeed_are_not_started(request_for):
    request = request_for(flags={"use_deepspeed": "true", "num_processes": "2"})
    with pytest.raises(
        NotAvailableError, match="needs DeepSpeed, and nothing was started. `deepspeed` is not installed"
    ):
        check_engine_installed(request, select_launcher(request))


@pytest.mark.parametrize(
    "given",
    [{"kind": "executable"}, {"flags": {"hosts": "a,b", "num_machines": "2", "num_processes": "2"}}],
    ids=["another program", "other machines"],
)
def test_ranks_with_separate_packages_are_started_with_a_warning(request_for, capsys, given):
    flags = {"use_deepspeed": "true", **given.get("flags", {})}
    request = request_for(**{**given, "flags": flags})
    check_engine_installed(request, select_launcher(request))
    assert (
        "needs DeepSpeed where the ranks run; here: `deepspeed` is not installed" in capsys.readouterr().err
    )


def test_other_launches_need_no_deepspeed(request_for, capsys):
    request = request_for(flags={"num_processes": "2"})
    check_engine_installed(request, select_launcher(request))
    assert capsys.readouterr().err == ""
