"""Random settings of a small training script, run with Accelerate and with accel, and compared.

``python integration-tests/random_configurations.py --ranks 2 --seeds 0:100`` prints how many seeds agree, how many
differ on purpose (for each reason, with the section of docs/start/from_accelerate.md), and each other one with
the fewest settings that still differ. ``--library accelerate --seeds 7`` prints what that library's script sees.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import select
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for `tools`, if this is run by hand
from tools.harness.fork_server import ForkedProcess, fork_server
from tools.harness.scripts import kill_tree

Settings = dict[str, Any]
Observed = list[dict[str, Any]]
"""What a script sees, by name, on each rank."""

SCRIPT = Path(__file__).with_name("random_training.py")
PEER = Path(__file__).parents[1] / "build" / "peer"
PRELOADED = ("torch._dynamo", "torch.utils.data.distributed", "torch.distributed.algorithms.join")
TIMEOUT_S = 40
ENDED, HANGS = "it ended", "it hangs"
DEFAULTS: Settings = {
    "seed": 1,
    "data": "map",
    "rows": 6,
    "batch_size": 2,
    "sampler": "in order",
    "drop_last": False,
    "num_workers": 0,
    "skip": 0,
    "others": [],
    "break_after": 0,
    "epochs": 1,
    "set_epoch": False,
    "split_batches": False,
    "dispatch_batches": None,
    "even_batches": True,
    "use_seedable_sampler": False,
    "data_seed": None,
    "non_blocking": False,
    "use_stateful_dataloader": False,
    "split_argument": False,
    "accumulation": 1,
    "plugin": False,
    "adjust_scheduler": True,
    "sync_with_dataloader": True,
    "sync_each_batch": False,
    "mixed_precision": "no",
    "device_placement": True,
    "scheduler": None,
    "step_scheduler_with_optimizer": True,
    "optimizer": "sgd",
    "dropout": False,
    "train": True,
    "uneven": False,
    "metric": None,
    "clip": None,
    "resume": 0,
    "reduce_of": "float",
    "reduction": "sum",
    "scale": 1.0,
    "padded_of": "vector",
    "pad_dim": 0,
    "pad_index": 0,
    "pad_first": False,
}
"""The plainest script; a configuration changes some of it."""


def configuration(seed: int, *, ranks: int) -> Settings:
    """Return the settings of a seed: the plainest, with some others than the default."""
    rng = random.Random(f"{seed} of {ranks}")

    def often(probability: float) -> bool:
        return rng.random() < probability

    chosen = {
        **DEFAULTS,
        "seed": seed,
        "data": rng.choice(("map", "map", "map", "stream", "sized stream")),
        "rows": rng.choice((0, 1, 2, 3, 5, 7, 8, 11, 12, 13, 16, 17)),
        "batch_size": rng.choice((1, 2, 3, 4, 5, 6)),
        "sampler": rng.choice(
            ("in order",) * 4
            + ("shuffled",) * 6
            + ("random", "random, generator", "replacement", "subset", "weighted", "own")
            + ("varying batches", "paired batches", "random batches")
        ),
        "drop_last": often(0.25),
        "num_workers": rng.choice((1, 2)) if often(0.08) else 0,
        "skip": rng.choice((1, 2, 3)) if often(0.3) else 0,
        "others": [rng.choice((1, 4, 5, 9)) for _ in range(rng.choice((1, 1, 2)))] if often(0.35) else [],
        "break_after": rng.choice((1, 2, 3)) if often(0.2) else 0,
        "epochs": rng.choice((1, 2, 2, 3)),
        "set_epoch": often(0.2),
        "split_batches": often(0.25),
        "dispatch_batches": rng.choice((True, False)) if often(0.4) else None,
        "even_batches": not often(0.25),
        "use_seedable_sampler": often(0.35),
        "data_seed": 5 if often(0.15) else None,
        "non_blocking": often(0.1),
        "use_stateful_dataloader": often(0.2),
        "split_argument": often(0.02),
        "accumulation": rng.choice((1, 1, 2, 3, 4)),
        "plugin": often(0.5),
        "adjust_scheduler": not often(0.3),
        "sync_with_dataloader": not often(0.3),
        "sync_each_batch": often(0.2),
        "mixed_precision": "bf16" if often(0.2) else "no",
        "device_placement": not often(0.1),
        "scheduler": rng.choice((None, "linear", "step", "cosine", "restarts", "one cycle", "plateau", "sequence")),
        "step_scheduler_with_optimizer": not often(0.2),
        "optimizer": rng.choice(("sgd", "adam")),
        "dropout": often(0.2),
        "train": not often(0.2),
        "metric": rng.choice(
            (None, "tensor", "tuple", "nested", "named tuple", "user dict", "bool", "scalar",
             "pair of rows and scalar", "objects", "dicts", "one object")
        ),
        "clip": rng.choice((None, None, "norm", "value")),
        "reduce_of": rng.choice(("float", "matrix", "scalar", "integers", "nested")),
        "reduction": rng.choice(("sum", "mean", "none", "max")),
        "scale": rng.choice((1.0, 1.0, 0.5)),
        "padded_of": rng.choice(("vector", "matrix", "nested")),
        "pad_dim": rng.choice((0, 0, 1, -1)),
        "pad_index": rng.choice((0, -100)),
        "pad_first": often(0.3),
    }  # fmt: skip
    if chosen["use_stateful_dataloader"]:
        chosen["resume"] = rng.choice((0, 1, 2))
    return possible(chosen, ranks=ranks)


def is_dispatched(settings: Settings) -> bool:
    """Whether one process reads for all: by default where the data is a stream."""
    is_stream = settings["data"] != "map"
    return is_stream if settings["dispatch_batches"] is None else bool(settings["dispatch_batches"])


def possible(settings: Settings, *, ranks: int) -> Settings:
    """Return settings of which PyTorch allows the combination, and with which ranks do not wait for each other."""
    made = dict(settings)
    if made["data"] != "map":
        made["sampler"] = "in order"
    if made["sampler"] != "in order" and made["rows"] < 2:
        made["rows"] = 2  # samplers refuse less
    if made["data"] != "map" or made["dispatch_batches"]:
        made["num_workers"] = min(made["num_workers"], 1)
    # Ranks that read other numbers of batches may not meet in collectives.
    made["uneven"] = ranks > 1 and not made["even_batches"]
    if made["sampler"] == "varying batches" and ranks > 1:
        made["uneven"] = True  # other numbers of rows on each rank
    if made["uneven"] and made["sampler"] == "varying batches":
        made["train"] = False
    return made


@dataclass(frozen=True, kw_only=True)
class Case:
    """A configuration, and what both libraries show with it."""

    settings: Settings
    theirs: Observed
    ours: Observed

    @property
    def num_ranks(self) -> int:
        return len(self.ours)

    def agrees(self, name: str, expected: Callable[[Any], Any]) -> bool:
        """Whether accel shows, on each rank, what ``expected`` makes of what Accelerate shows."""
        return all(
            our.get(name) == expected(their[name]) if name in their else name not in our
            for their, our in zip(self.theirs, self.ours, strict=True)
        )

    @property
    def draws_order(self) -> bool:
        """Whether the order of rows is drawn from a generator, and not by the seedable sampler."""
        is_drawn = self.settings["sampler"] in DRAWN
        return is_drawn and not (
            self.settings["use_seedable_sampler"] and self.settings["sampler"] in SEEDABLE
        )


DRAWN = {"shuffled", "random", "random, generator", "replacement", "subset", "weighted", "random batches"}
SEEDABLE = {"shuffled", "random", "random, generator", "replacement"}
NUMBERS = {"losses", "norms", "weights", "gathered", "rates"}


@dataclass(frozen=True)
class Difference:
    """A difference that is meant: what it explains of a case, and the section of the page that documents it."""

    reason: str
    section: str
    explains: Callable[[Case], set[str]]


def scalars_have_a_dimension(case: Case) -> set[str]:
    """Also: an object that is no list is gathered as a list of one."""
    is_object = case.settings["metric"] == "one object"

    def widened(value: Any) -> Any:
        if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and value[1] == []:
            return [value[0], [1], value[2]]
        if isinstance(value, dict):
            made = {key: widened(item) for key, item in value.items()}
            return {"list": [made]} if is_object and "ids" in value.get("dict", {}) else made
        return [widened(item) for item in value] if isinstance(value, list) else value

    return {"gathered"} if case.num_ranks == 1 and case.agrees("gathered", widened) else set()


def scales_what_it_reduces(case: Case) -> set[str]:
    """Accelerate scales on TPUs only, and on one process returns what it is given."""
    settings = case.settings
    scale = 1.0 if settings["reduction"] == "none" else settings["scale"]
    is_mean_of_integers = settings["reduction"] == "mean" and settings["reduce_of"] == "integers"

    def reduced(value: Any) -> Any:
        if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
            is_float = settings["reduce_of"] != "integers" or (scale == 1.0 and not is_mean_of_integers)
            return [
                value[0] if is_float else "torch.float64",
                value[1],
                [number * scale for number in value[2]],
            ]
        if isinstance(value, dict):
            return {key: reduced(item) for key, item in value.items()}
        return [reduced(item) for item in value]

    return {"reduced"} if case.agrees("reduced", reduced) else set()


def has_more_attributes(case: Case) -> set[str]:
    return {
        name
        for name in ("total_batch_size", "total_dataset_length")
        if all(
            their in ("AttributeError", "TypeError", our)
            for theirs, ours in zip(case.theirs, case.ours, strict=True)
            for their, our in zip(theirs.get(name, ()), ours.get(name, ()), strict=False)
        )
    }


def skipping_counts_epochs(case: Case) -> set[str]:
    """And it draws nothing, so that a resumed script continues with the random numbers of the interrupted one."""
    settings = case.settings
    if not settings["skip"]:
        return set()
    if settings["epochs"] + settings["resume"] > 1 and settings["sampler"] not in (
        "in order",
        "varying batches",
        "paired batches",
    ):
        return {"draws", "rows", "resumed"} | NUMBERS
    # On n processes, Accelerate's skipping loader does not know its last step, and keeps what fills it up.
    is_filled = case.num_ranks > 1 and settings["metric"]
    return {"draws"} | (NUMBERS if settings["dropout"] else set()) | ({"gathered"} if is_filled else set())


def left_loops_end(case: Case) -> set[str]:
    """Accelerate's loader stays the active one when `break` leaves its loop, or if it has no batch."""
    if not (
        case.settings["break_after"]
        or case.settings["skip"]
        or case.settings["rows"] < case.settings["batch_size"]
    ):
        return set()
    pairs = [
        (their["list"], our["list"])
        for theirs, ours in zip(case.theirs, case.ours, strict=True)
        for their, our in itertools.zip_longest(
            theirs.get("flags", ()), ours.get("flags", ()), fillvalue={"list": ()}
        )
    ]
    return {"flags"} if all(their == our or our == [False, False] for their, our in pairs) else set()


def stateful_loaders_read_as_others(case: Case) -> set[str]:
    """Accelerate's draw at `prepare`, and from workers the seedable sampler's second order first."""
    settings = case.settings
    if not settings["use_stateful_dataloader"]:
        return set()
    names = set()
    if settings["others"]:
        names |= {"draws"} | (NUMBERS if settings["dropout"] else set())
        names |= {"rows", *NUMBERS} if case.draws_order else set()
    if settings["num_workers"] and settings["sampler"] in DRAWN:
        names |= {"draws", "rows", *NUMBERS}
    if settings["resume"] and (
        settings["sampler"] in DRAWN | {"own"} or all("resumed" not in rank for rank in case.ours)
    ):
        names |= {"resumed"}  # the order of the epoch that was left; and nothing after its last batch
    return names


def accepts_no_rows(case: Case) -> set[str]:
    """A loader without rows, and one that skips more batches than there are."""
    messages = ("ValueError: Batch does not contain any data", "ValueError: __len__() should return >= 0",
                "TypeError: Unsupported types (<class 'NoneType'>) passed to `_gpu_broadcast_one`")  # fmt: skip
    fails = any(error.startswith(messages) for rank in case.theirs for error in rank.get("message", ()))
    return EVERYTHING if fails and not any("error" in rank for rank in case.ours) else set()


def skipped_streams_are_shorter(case: Case) -> set[str]:
    settings = case.settings

    def shorter(lengths: Any) -> Any:
        return [*lengths[:-1], max(0, lengths[0] - settings["skip"])]

    is_skipped = settings["skip"] and settings["data"] == "sized stream"
    return {"length"} if is_skipped and case.agrees("length", shorter) else set()


def keeps_all_rows_of_full_batches(case: Case) -> set[str]:
    """Accelerate counts the rows that a batch sampler of one's own drops, and cuts its last batch."""
    settings = case.settings
    is_own = settings["sampler"] in ("paired batches", "random batches")
    return {"gathered"} if settings["drop_last"] and is_own else set()


def of_several_processes(case: Case) -> set[str]:
    """Accelerate draws another order for n processes; a sampler that is not the seedable one is not shared at all."""
    if case.num_ranks == 1 or not case.draws_order:
        return set()
    return {"draws", "rows", "resumed", *NUMBERS}


def obeys_split_argument(case: Case) -> set[str]:
    return EVERYTHING if case.settings["split_argument"] and case.num_ranks > 1 else set()


def streams_have_lengths(case: Case) -> set[str]:
    """Accelerate takes the length of one rank's part for that of the stream, and keeps what completes a batch."""
    if case.num_ranks == 1 or case.settings["data"] != "sized stream":
        return set()
    return {"gathered", "total_batch_size", "total_dataset_length"}


def gathers_objects_whole(case: Case) -> set[str]:
    return {"gathered"} if case.num_ranks > 1 and case.settings["metric"] == "one object" else set()


def keeps_scalars_of_all(case: Case) -> set[str]:
    is_scalar = case.settings["metric"] in ("scalar", "pair of rows and scalar")
    return {"gathered"} if case.num_ranks > 1 and is_scalar else set()


def joins_uneven_ranks(case: Case) -> set[str]:
    """With Accelerate such ranks may wait for each other, or fail; and all have the length of the first."""
    if not case.settings["uneven"]:
        return set()
    fails = any("error" in rank for rank in case.theirs) and not any("error" in rank for rank in case.ours)
    return EVERYTHING if fails else {"length"}


def reduces_nothing(case: Case) -> set[str]:
    return {"reduced"} if case.num_ranks > 1 and case.settings["reduction"] == "none" else set()


def averages_integers(case: Case) -> set[str]:
    message = "RuntimeError: result type Float can't be cast"
    fails = all(any(error.startswith(message) for error in rank.get("message", ())) for rank in case.theirs)
    return {"error", "gathered", "padded", "reduced", "splits"} if fails else set()


def splits_what_can_be_split(case: Case) -> set[str]:
    """Accelerate refuses a batch sampler without `batch_size` at once, accel a batch that cannot be split."""
    is_varying = case.settings["sampler"] == "varying batches" and case.settings["split_batches"]
    fails = all("error" in rank and "length" not in rank for rank in case.theirs)
    return EVERYTHING if is_varying and fails else set()


def stays_at_the_last_rate(case: Case) -> set[str]:
    fails = any(
        error.startswith("ValueError: Tried to step")
        for rank in case.theirs
        for error in rank.get("message", ())
    )
    return EVERYTHING if fails and not any("error" in rank for rank in case.ours) else set()


def skips_steps(case: Case) -> set[str]:
    """Where one process reads for all, Accelerate skips batches of that one, of which a step takes several."""
    settings = case.settings
    if (
        case.num_ranks == 1
        or not settings["skip"]
        or not is_dispatched(settings)
        or settings["split_batches"]
    ):
        return set()
    if any("error" in rank for rank in case.theirs) and not any("error" in rank for rank in case.ours):
        return EVERYTHING  # ranks wait for each other where nothing is left
    return {"draws", "rows", "flags", "length", "remainders", "syncs", "skipped", *NUMBERS}


def refuses_to_split_streams(case: Case) -> set[str]:
    """Accelerate hands out empty batches of a stream, and loses its rows."""
    message = "ConfigError: `split_batches` needs a batch size that is a multiple of the number of processes"
    is_stream = case.settings["data"] != "map" or is_dispatched(case.settings)
    fails = all(any(error.startswith(message) for error in rank.get("message", ())) for rank in case.ours)
    return EVERYTHING if is_stream and fails else set()


def fills_nothing_up(case: Case) -> set[str]:
    """Accelerate has no `even_batches=False` for streams, and where one process reads for all."""
    settings = case.settings
    is_filled = settings["data"] != "map" or is_dispatched(settings)
    if case.num_ranks == 1 or settings["even_batches"] or not is_filled:
        return set()
    message = "ConfigError: Gradients cannot be accumulated over a stream"
    if any(error.startswith(message) for rank in case.ours for error in rank.get("message", ())):
        return EVERYTHING  # ranks without a batch wait for the one that fails
    return {"draws", "rows", "flags", "length", "remainders", "syncs", "skipped", *NUMBERS}


def measures_at_each_call(case: Case) -> set[str]:
    """Accelerate leaves out the step of a `ReduceLROnPlateau` within an accumulation, and takes one for n."""
    settings = case.settings
    if settings["scheduler"] != "plateau" or (settings["accumulation"] == 1 and case.num_ranks == 1):
        return set()
    return set(NUMBERS)


def counts_the_rows_of_samplers(case: Case) -> set[str]:
    return {"gathered"} if case.settings["sampler"] in ("replacement", "subset") else set()


def remainder_is_that_of_the_last_step(case: Case) -> set[str]:
    """Accelerate shows -1 with `drop_last`, the rows of a full last batch, or counts the data set, not the sampler."""
    is_counted = (
        case.settings["sampler"] in ("subset", "replacement", "varying batches")
        or case.settings["data"] != "map"
    )
    pairs = [
        pair
        for theirs, ours in zip(case.theirs, case.ours, strict=True)
        for pair in zip(theirs.get("remainders", ()), ours.get("remainders", ()), strict=False)
    ]
    return (
        {"remainders"}
        if is_counted or all(their == -1 or our in (their, 0, -1) for their, our in pairs)
        else set()
    )


READ = {
    "draws",
    "rows",
    "flags",
    "remainders",
    "length",
    "total_batch_size",
    "total_dataset_length",
    "resumed",
}
EVERYTHING = NUMBERS | READ | {"error", "padded", "reduced", "skipped", "splits", "syncs"}
ROWS, METRICS = "Rows and their order", "Learning rates, gradients and metrics"
CHECKPOINTS, ERRORS = "Checkpoints and endings", "Errors here, silent there"
MEANT = (
    Difference("a gathered scalar has a dimension", METRICS, scalars_have_a_dimension),
    Difference("`reduce` scales", METRICS, scales_what_it_reduces),
    Difference("loaders of every kind have their sizes", ROWS, has_more_attributes),
    Difference(
        "a pass that skips batches is an epoch, and draws no random numbers", ROWS, skipping_counts_epochs
    ),
    Difference("a loop that was left has ended", ROWS, left_loops_end),
    Difference("stateful loaders read as others do", CHECKPOINTS, stateful_loaders_read_as_others),
    Difference("a loader without rows has no batches", ROWS, accepts_no_rows),
    Difference("a skipped stream is shorter", ROWS, skipped_streams_are_shorter),
    Difference("full batches are gathered whole", METRICS, keeps_all_rows_of_full_batches),
    Difference("order of several processes", ROWS, of_several_processes),
    Difference("`split_batches` is obeyed", ROWS, obeys_split_argument),
    Difference("streams have the length that they say", ROWS, streams_have_lengths),
    Difference("objects are gathered whole", METRICS, gathers_objects_whole),
    Difference('`reduce` does nothing with "none"', METRICS, reduces_nothing),
    Difference("integers have a mean", METRICS, averages_integers),
    Difference("scalars of a short step are kept", METRICS, keeps_scalars_of_all),
    Difference("uneven ranks join, and have lengths of their own", METRICS, joins_uneven_ranks),
    Difference("what can be split is split", ROWS, splits_what_can_be_split),
    Difference("steps are skipped", ROWS, skips_steps),
    Difference("`even_batches=False` is obeyed", ROWS, fills_nothing_up),
    Difference("a plateau is measured at each call", METRICS, measures_at_each_call),
    Difference("rows are those of the sampler", METRICS, counts_the_rows_of_samplers),
    Difference("a cycle stays at its last rate", METRICS, stays_at_the_last_rate),
    Difference("a batch that cannot be split is refused", ERRORS, refuses_to_split_streams),
    Difference("the remainder is that of the last step", ROWS, remainder_is_that_of_the_last_step),
)


def differing(theirs: Observed, ours: Observed) -> set[str]:
    """Return the names of what differs on some rank."""
    names = {name for rank in (*theirs, *ours) for name in rank} - {"message"}
    return {name for name in names if [r.get(name) for r in theirs] != [r.get(name) for r in ours]}


def unexplained(settings: Settings, theirs: Observed, ours: Observed) -> tuple[set[str], list[Difference]]:
    """Return the names of what differs without a reason, and the differences that are meant."""
    left, used = differing(theirs, ours), []
    case = Case(settings=settings, theirs=theirs, ours=ours)
    for meant in MEANT:
        if left and (explained := left & meant.explains(case)):
            left -= explained
            used.append(meant)
    return left, used


class Ranks:
    """The processes of one library, which run one configuration after the other."""

    def __init__(self, library: str, ranks: int) -> None:
        self.library, self.num_ranks = library, ranks
        self._processes: list[ForkedProcess] = []
        self._stack = ExitStack()

    def send(self, settings: Settings) -> None:
        """Have the script run with settings."""
        if not self._processes:
            self._start()
        for pipe in self._questions:
            pipe.write(json.dumps(settings) + "\n")
            pipe.flush()

    def receive(self) -> Observed:
        """Return what each rank has seen. After an error the next script gets new processes."""
        answers = []
        deadline = time.monotonic() + TIMEOUT_S
        for pipe in self._answers:
            ready, _, _ = select.select([pipe], [], [], max(1, deadline - time.monotonic()))
            line = pipe.readline() if ready else ""
            answers.append(json.loads(line) if line else {"error": [ENDED if ready else HANGS]})
        errors = {error for answer in answers for error in answer.get("error", ())}
        if errors & {ENDED, HANGS} or (errors and self.num_ranks > 1):
            self.close()
        return answers

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            kill_tree(process.pid)
            process.wait()
        self._processes = []
        self._stack.close()

    def _start(self) -> None:
        errors = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 -- the stack closes it
        # Bound, so that no other process is given the port, but not listened to, so that rank 0 can take it.
        port = self._stack.enter_context(socket.socket())
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", 0))
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
        if self.num_ranks > 1:
            environ |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port.getsockname()[1]),
                "WORLD_SIZE": str(self.num_ranks),
                "LOCAL_WORLD_SIZE": str(self.num_ranks),
            }
        self._questions, self._answers = [], []
        for rank in map(str, range(self.num_ranks)):
            of_rank = {"RANK": rank, "LOCAL_RANK": rank} if self.num_ranks > 1 else {}
            (its_input, questions), (answers, its_output) = os.pipe(), os.pipe()
            self._questions.append(self._stack.enter_context(os.fdopen(questions, "w", encoding="utf-8")))
            self._answers.append(self._stack.enter_context(os.fdopen(answers, encoding="utf-8")))
            with open(its_input, "rb") as stdin, open(its_output, "wb") as stdout:
                argv = str(SCRIPT), self.library, str(PEER)
                streams = stdin, stdout, errors
                self._processes.append(
                    fork_server(PRELOADED).start(
                        argv, environ={**environ, **of_rank}, cwd=None, streams=streams
                    )
                )


class Comparison:
    """Both libraries, each in processes of its own."""

    def __init__(self, ranks: int) -> None:
        self._libraries = Ranks("accelerate", ranks), Ranks("accel", ranks)

    def run(self, settings: Settings) -> tuple[Observed, Observed]:
        """Return what the script sees with Accelerate, and what with accel."""
        for library in self._libraries:
            library.send(settings)
        theirs, ours = (library.receive() for library in self._libraries)
        return theirs, ours

    def close(self) -> None:
        for library in self._libraries:
            library.close()

    def smallest(self, settings: Settings) -> Settings:
        """Return settings as plain as possible that still differ without a reason in something that did."""
        theirs, ours = self.run(settings)
        wanted, _ = unexplained(settings, theirs, ours)
        for name, default in DEFAULTS.items():
            if name in ("seed", "uneven") or settings[name] == default:
                continue
            plainer = possible({**settings, name: default, "uneven": False}, ranks=len(theirs))
            if plainer == settings:
                continue
            left, _ = unexplained(plainer, *self.run(plainer))
            if left & wanted:
                settings = plainer
        return settings


@contextmanager
def comparison(ranks: int) -> Iterator[Comparison]:
    """Start both libraries, and end their processes after the block."""
    with ExitStack() as stack:
        made = Comparison(ranks)
        stack.callback(made.close)
        yield made


def described(settings: Settings, theirs: Observed, ours: Observed) -> str:
    """Return what is not as in the plainest script, and what differs."""
    changed = {name: value for name, value in settings.items() if value != DEFAULTS[name]}
    lines = [f"seed {settings['seed']}: {changed}"]
    for name in sorted(
        {*differing(theirs, ours), *(["message"] if "error" in differing(theirs, ours) else [])}
    ):
        for rank, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            if their.get(name) != our.get(name):
                lines.append(
                    f"  {name}, rank {rank}\n    Accelerate {their.get(name)}\n    accel      {our.get(name)}"
                )
    return "\n".join(lines)


def compare(seeds: Sequence[int], *, ranks: int, reduce: bool = False) -> tuple[Counter[str], list[str]]:
    """Run many configurations and return how many there were of each outcome, and what differs without a reason."""
    outcomes: Counter[str] = Counter()
    wrong = []
    with comparison(ranks) as libraries:
        for seed in seeds:
            settings = configuration(seed, ranks=ranks)
            theirs, ours = libraries.run(settings)
            left, used = unexplained(settings, theirs, ours)
            if left:
                outcomes["differ"] += 1
                if reduce:
                    settings = libraries.smallest(settings)
                    theirs, ours = libraries.run(settings)
                wrong.append(described(settings, theirs, ours))
                print(wrong[-1], flush=True)
            elif used:
                outcomes.update(f"differs on purpose: {meant.reason} ({meant.section})" for meant in used)
            else:
                outcomes["errors alike" if "error" in ours[0] else "same"] += 1
    return outcomes, wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, or one seed")
    parser.add_argument(
        "--library", choices=("accelerate", "accel"), help="print what its script sees, and compare nothing"
    )
    parser.add_argument(
        "--as-they-are", action="store_true", help="do not look for fewer settings that differ"
    )
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    if arguments.library:
        library = Ranks(arguments.library, arguments.ranks)
        for seed in seeds:
            library.send(configuration(seed, ranks=arguments.ranks))
            print(json.dumps(library.receive()), flush=True)
        library.close()
        return
    outcomes, wrong = compare(seeds, ranks=arguments.ranks, reduce=not arguments.as_they_are)
    for outcome, count in outcomes.most_common():
        print(f"{count:5}  {outcome}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
