import argparse
import functools
import socket
import sys
import threading

import pytest

from accel.functions import (
    ThreadLocalSharedDict,
    do_nothing,
    get_pretty_name,
    install_xla,
    is_port_in_use,
    merge_dicts,
    patch_optimizer_step,
    prepare_extend_env_parallelism_config,
    setup_fp8_env,
    wait_for_everyone,
)
from accel_state.errors import StateError


class Thing:
    shared = ThreadLocalSharedDict()
    of_thread = ThreadLocalSharedDict(thread_local=True)

    def method(self):
        pass


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (Thing, "Thing"),
        (Thing(), "Thing"),
        (Thing().method, "Thing.method"),
        (print, "print"),
        (functools.partial(print), "partial"),
        (3, "int"),
        ("text", "str"),
    ],
)
def test_pretty_names(thing, name):
    assert get_pretty_name(thing) == name


def test_dicts_are_merged_into_the_destination():
    source, destination = {"a": {"b": 1}, "c": [1]}, {"a": {"d": 2, "b": 5}, "c": [2], "e": 3}
    merged = merge_dicts(source, destination)
    assert merged is destination
    assert merged == {"a": {"d": 2, "b": 1}, "c": [1], "e": 3}
    assert merge_dicts(source, {})["a"] is not source["a"]


def test_a_port_is_in_use_while_something_listens():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not is_port_in_use(port)
        server.listen()
        assert is_port_in_use(port)


def test_xla_is_installed_in_colab_only(monkeypatch):
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    with pytest.raises(StateError, match="works in Google Colab only"):
        install_xla()


def test_a_dict_is_shared_by_objects_and_by_threads_unless_each_has_its_own():
    Thing().shared = {"a": 1}
    Thing().of_thread = {"a": 1}
    seen = []
    thread = threading.Thread(target=lambda: seen.append((Thing().shared, Thing().of_thread)))
    thread.start()
    thread.join()
    assert seen == [({"a": 1}, {})]
    assert Thing().of_thread == {"a": 1}


def test_a_patched_step_records_that_it_was_called():
    optimizer = Thing()
    assert patch_optimizer_step(optimizer, lambda number: number + 1)(3) == 4
    assert optimizer._accelerate_step_called
    assert do_nothing(1, a=2) is None


def wait():
    wait_for_everyone()
    return True


def test_all_processes_wait_for_each_other(world):
    assert world(2).run(wait) == [True, True]


def test_arguments_of_combined_parallelism_come_into_the_environment():
    arguments = argparse.Namespace(
        use_parallelism_config="true",
        parallelism_config_tp_size=4,
        parallelism_config_cp_backend="torch",
        parallelism_config_sp_seq_length=None,
        other=3,
    )
    environment = {"A": "b"}
    assert prepare_extend_env_parallelism_config(arguments, environment) is environment
    assert environment == {
        "A": "b",
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_TP_SIZE": "4",
        "PARALLELISM_CONFIG_CP_BACKEND": "torch",
    }


def test_arguments_of_8_bit_training_become_variables():
    arguments = argparse.Namespace(
        fp8_backend="TE", fp8_margin=2, fp8_format=None, fp8_override_linear_precision=(True, False, True)
    )
    environment = {"HOME": "/"}
    assert setup_fp8_env(arguments, environment) is environment
    assert environment == {
        "HOME": "/",
        "ACCELERATE_FP8_BACKEND": "TE",
        "ACCELERATE_FP8_MARGIN": "2",
        "FP8_OVERRIDE_FPROP": "true",
        "FP8_OVERRIDE_DGRAD": "false",
        "FP8_OVERRIDE_WGRAD": "true",
    }
