"""Loggers of several processes: who logs, in which order, and which line is reported."""

import inspect
import logging

import pytest
import torch.distributed as dist

from accel_state.errors import ConfigError, StateError
from accel_state.logging import MultiProcessAdapter, get_logger
from accel_state.partial_state import PartialState


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture
def records(request):
    """Collect what the logger called as the test logs."""
    handler, logger = Records(), logging.getLogger(request.node.name)
    logger.addHandler(handler)
    yield handler.records
    logger.removeHandler(handler)


@pytest.fixture
def logger(request, records, fresh_state):
    PartialState(cpu=True)
    return get_logger(request.node.name, log_level="debug")


def test_line_of_the_caller_is_reported(logger, records):
    for method in (logger.debug, logger.warning, logger.critical, logger.warning_once):
        method("message %s", 1)
        line = inspect.currentframe().f_lineno - 1
        assert (records[-1].filename, records[-1].lineno) == ("test_logging.py", line)
        assert records[-1].getMessage() == "message 1"
    logger.log(logging.INFO, "message")
    assert records[-1].lineno == inspect.currentframe().f_lineno - 1
    log_for_another(logger)
    assert records[-1].lineno == inspect.currentframe().f_lineno - 1


def log_for_another(logger):
    logger.info("for my caller", stacklevel=3)


def test_error_of_the_caller_is_reported(logger, records):
    try:
        raise KeyError("lost")
    except KeyError:
        logger.exception("failed")
    assert records[0].exc_info[0] is KeyError
    assert records[0].funcName == "test_error_of_the_caller_is_reported"


def test_same_warning_is_logged_once_and_another_again(logger, records):
    for _ in range(3):
        logger.warning_once("careful")
        logger.warning_once("careful", main_process_only=False)
    logger.warning_once("more careful")
    assert [record.getMessage() for record in records] == ["careful", "careful", "more careful"]


def test_level_below_the_loggers_is_not_logged(logger, records):
    logger.setLevel("ERROR")
    logger.warning("quiet", in_order=True, main_process_only=False)
    assert records == []


def test_extra_of_the_adapter_and_of_the_call_both_reach_the_record(logger, records):
    adapter = MultiProcessAdapter(logger.logger, {"run": "r1", "stage": "all"})
    adapter.info("message", extra={"stage": "train"})
    assert (records[0].run, records[0].stage) == ("r1", "train")


@pytest.mark.usefixtures("fresh_state")
def test_use_before_the_state_is_an_error(records):
    with pytest.raises(StateError, match="Construct `Accelerator..` or `PartialState..` first"):
        get_logger("early").warning("who am I?")


def test_level_comes_from_the_environment_and_the_argument_wins(monkeypatch):
    get_logger("level.untouched")
    assert logging.getLogger("level.untouched").level == logging.NOTSET
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "info")
    get_logger("level.environment")
    get_logger("level.argument", log_level="ERROR")
    assert logging.getLogger("level.environment").level == logging.INFO
    assert logging.getLogger("level.argument").level == logging.ERROR
    assert logging.getLogger().level == logging.WARNING


def test_unknown_level_is_refused():
    with pytest.raises(ConfigError, match="`log_level` must be one of CRITICAL.*got `loud`"):
        get_logger("level.unknown", log_level="loud")


def logged(**kwargs):
    handler = Records()
    logging.getLogger("everywhere").addHandler(handler)
    get_logger("everywhere", log_level="INFO").info("message", **kwargs)
    return len(handler.records)


def test_main_process_alone_logs_unless_configured_otherwise(world):
    assert world(2).run(logged) == [1, 0]
    assert world(2).run(logged, main_process_only=False) == [1, 1]
    assert world(2).run(logged, main_process_only=False, in_order=True) == [1, 1]
    assert world(2).run(logged, in_order=True) == [1, 0]


def logged_where_levels_differ():
    handler = Records()
    logging.getLogger("levels").addHandler(handler)
    logger = get_logger("levels", log_level="INFO" if dist.get_rank() == 0 else "ERROR")
    logger.info("message", main_process_only=False, in_order=True)
    return len(handler.records)


def test_ordered_messages_do_not_wait_for_ranks_whose_level_discards_them(world):
    assert world(3).run(logged_where_levels_differ) == [1, 0, 0]


def around(logger, **kwargs):
    logger.info("message", **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "function"),
    [
        ({}, "around"),
        ({"stacklevel": 1}, "around"),
        ({"stacklevel": 2}, "around"),
        ({"stacklevel": 3}, "test_"),
    ],
)
def test_the_stack_level_names_whose_line_is_shown(logger, records, kwargs, function):
    around(logger, **kwargs)
    assert records[0].funcName.startswith(function)
    assert records[0].pathname == __file__


class AppendRank(logging.Handler):
    """Writes a common file; the first rank dawdles, so that only taking turns gives the right order."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def emit(self, record):
        rank = dist.get_rank()
        if rank == 0:
            import time

            time.sleep(0.2)
        with self.path.open("a") as file:
            file.write(str(rank))


def log_in_order(path):
    logging.getLogger("ordered").addHandler(AppendRank(path))
    get_logger("ordered", log_level="INFO").info("message", main_process_only=False, in_order=True)


def test_ordered_messages_come_by_rank(world, tmp_path):
    world(2).run(log_in_order, tmp_path / "log")
    assert (tmp_path / "log").read_text() == "01"
