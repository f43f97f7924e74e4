from __future__ import annotations

import pytest

from accel_launch.report import FoundException, find_exception

PLAIN = """
step 3
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    main()
  File "/home/me/train.py", line 9, in main
    raise ValueError("told: to raise")
ValueError: told: to raise
bye
"""
IN_A_LIBRARY = """
Traceback (most recent call last):
  File "/home/me/train.py", line 3, in step
    torch.zeros(2) @ torch.zeros(3)
  File "/env/lib/python3.11/site-packages/torch/functional.py", line 40, in mm
    ~~~^^^
RuntimeError: inconsistent tensor size
"""
CHAINED = """
Traceback (most recent call last):
  File "/a.py", line 1, in f
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/a.py", line 4, in g
my.package.CustomError
"""
IMITATED = """
Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    call()
ValueError: the server failed:
Traceback (most recent call last):
  File "server.py", line 3, in g
KeyError: 'x'
"""
WITH_RANKS = """
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 5, in <module>
[rank1]:     f()
[rank1]: torch.distributed.DistBackendError: NCCL error
[W123 process_group.cpp] Warning: destroy_process_group() was not called
"""
LOCAL_CLASS = """
Traceback (most recent call last):
  File "/a.py", line 4, in g
    raise My("no")
g.<locals>.My: no
"""
GROUP = """
Traceback (most recent call last):
  File "/a.py", line 1, in earlier
KeyError: 'x'

During handling of the above exception, another exception occurred:

  + Exception Group Traceback (most recent call last):
  |   File "/a.py", line 9, in <module>
  |     train(7)
  |   File "/a.py", line 5, in train
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/a.py", line 2, in one
    | ValueError: a
    +---------------- 2 ----------------
    | TypeError: b
    +------------------------------------
"""
UNREADABLE = """
  File "/home/me/train.py", line 2
    foo(
       ^
SyntaxError: '(' was never closed
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PLAIN, FoundException("ValueError", "told: to raise", "/home/me/train.py", 9, "main")),
        (
            IN_A_LIBRARY,
            FoundException("RuntimeError", "inconsistent tensor size", "/home/me/train.py", 3, "step"),
        ),
        (IMITATED, FoundException("ValueError", "the server failed:", "/home/me/train.py", 3, "<module>")),
        (CHAINED, FoundException("my.package.CustomError", "", "/a.py", 4, "g")),
        (
            WITH_RANKS,
            FoundException(
                "torch.distributed.DistBackendError", "NCCL error", "/home/me/train.py", 5, "<module>"
            ),
        ),
        (LOCAL_CLASS, FoundException("g.<locals>.My", "no", "/a.py", 4, "g")),
        (GROUP, FoundException("ExceptionGroup", "several (2 sub-exceptions)", "/a.py", 5, "train")),
        (UNREADABLE, FoundException("SyntaxError", "'(' was never closed", "/home/me/train.py", 2, None)),
        ("all is well\n", None),
        ("Traceback (most recent call last):\n  File cut off", None),
        (
            "Traceback (most recent call last):\nValueError: no frame",
            FoundException("ValueError", "no frame"),
        ),
    ],
)
def test_the_last_exception_is_found_with_the_place_in_ones_own_code(text, found):
    assert find_exception(text.splitlines()) == found


@pytest.mark.parametrize(
    ("exception", "words"),
    [
        (FoundException("E", "no", "/a.py", 3, "f"), "E: no (/a.py:3 in f)"),
        (FoundException("E", "", "/a.py", 3, "<module>"), "E (/a.py:3)"),
        (FoundException("E", "no"), "E: no"),
    ],
)
def test_an_exception_in_words(exception, words):
    assert exception.describe() == words


@pytest.mark.parametrize(
    ("message", "is_lost"),
    [
        ("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3217", True),
        ("Connection reset by peer", True),
        ("[Errno 32] Broken pipe", True),
        ("NCCL communicator was aborted on rank 1.", True),
        ("Timed out waiting 15000ms for recv operation to complete", True),
        ("CUDA out of memory. Tried to allocate 2 GiB", False),
        ("loss is nan", False),
    ],
)
def test_what_is_reported_of_a_lost_peer_is_no_first_cause(message, is_lost):
    assert FoundException("RuntimeError", message).is_about_a_lost_peer is is_lost


def test_a_script_that_the_script_has_run_is_not_taken_for_it():
    lines = """
Traceback (most recent call last):
  File "/home/me/train.py", line 7, in <module>
    raise RuntimeError(done.stderr)
RuntimeError: it failed:
Traceback (most recent call last):
  File "/home/me/fetch.py", line 2, in <module>
    fetch()
TimeoutError: no answer
""".splitlines()
    assert find_exception(lines, ("python", "-u", "train.py")).type == "RuntimeError"
    assert find_exception(lines, ("python", "-u", "./fetch.py")).type == "TimeoutError"
