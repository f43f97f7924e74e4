import pytest
import torch

from accel import Accelerator

pytestmark = pytest.mark.usefixtures("fresh_state")


def whoami():
    accelerator = Accelerator(cpu=True)
    ran = []
    accelerator.on_main_process(lambda: ran.append("main"))()
    accelerator.on_last_process(lambda: ran.append("last"))()
    accelerator.on_process(lambda: ran.append("one"), process_index=1)()
    accelerator.on_local_process(lambda: ran.append("local zero"), local_process_index=0)()
    with accelerator.split_between_processes([1, 2, 3]) as part:
        ran.append(part)
    flags = (accelerator.is_main_process, accelerator.is_local_main_process, accelerator.is_last_process)
    return accelerator.process_index, accelerator.num_processes, flags, ran


def test_every_rank_knows_who_it_is_and_runs_its_part(world):
    assert world(2).run(whoami) == [
        (0, 2, (True, True, False), ["main", "local zero", [1, 2]]),
        (1, 2, (False, False, True), ["last", "one", [3]]),
    ]


def test_a_single_process_is_main_and_last():
    accelerator = Accelerator(cpu=True)
    assert (accelerator.is_main_process, accelerator.is_last_process) == (True, True)
    assert (accelerator.use_distributed, accelerator.multi_device) == (False, False)
    assert accelerator.device == torch.device("cpu")


def test_print_prints(capsys):
    Accelerator(cpu=True).print("once", end="!")
    assert capsys.readouterr().out == "once!"


def test_a_decorator_keeps_the_functions_name_and_result():
    accelerator = Accelerator(cpu=True)

    @accelerator.on_main_process
    def answer():
        return 42

    assert (answer(), answer.__name__) == (42, "answer")


def broken_off():
    accelerator = Accelerator(cpu=True)
    if accelerator.is_last_process:
        accelerator.set_breakpoint()
    return [accelerator.check_breakpoint(), accelerator.check_breakpoint()]


def test_the_older_names_of_the_trigger_do_the_same(world):
    assert world(2).run(broken_off) == [[True, False]] * 2


def test_the_triggers_names_may_be_mixed():
    accelerator = Accelerator(cpu=True)
    accelerator.set_trigger()
    assert accelerator.check_breakpoint()
