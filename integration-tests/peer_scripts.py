"""Runs Accelerate's own scripts on both libraries: ``python integration-tests/peer_scripts.py [NAME …]``.

The scripts are those that Accelerate's tests start, from its source distribution, and with
``--examples FOLDER`` the examples of its repository. Each runs as it is, with Accelerate and with accel;
what it prints, and each loss that it differentiates, must be equal. Exit code 1 if a script differs without
a reason in the table below.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import peer_images
import peer_sources

sys.path.append(str(Path(__file__).parents[1]))  # for `tools`, if this is run by hand
from tools.harness.fork_server import fork_server
from tools.harness.scripts import run_script

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PEER = ROOT / "build" / "peer"
DROP_IN = ROOT / "packages" / "accel" / "src" / "accel" / "drop_in" / "bootstrap"
START = HERE / "peer_script_start.py"
LIMIT_S = 240
PRELOAD = (
    "datasets",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
    "transformers.optimization",
)
"""Large modules that processes which need data share. Some import `accelerate`, so each library has its own."""


@dataclass(frozen=True)
class Run:
    """A script in a number of processes.

    Attributes:
        script: Its path below the folder of scripts, or of examples.
        num_processes: Of the job.
        arguments: One list for each time that it is run; the runs share a folder.
        launched: Its `main` is started by `debug_launcher`, not the script by a launcher.
        alone: One process starts it, which starts others (`notebook_launcher`).
        data: It reads data sets or models, which are stood in for.
    """

    script: str
    num_processes: int
    arguments: tuple[tuple[str, ...], ...] = ((),)
    launched: bool = False
    alone: bool = False
    data: bool = True

    @property
    def name(self) -> str:
        """What a table calls it."""
        words = [word for word in self.arguments[-1] if word.startswith("--")]
        return " ".join([self.script, *(["by debug_launcher"] if self.launched else []), *words])


@dataclass(frozen=True)
class Outcome:
    """What a run printed on standard output, how it ended, and the last line of its error."""

    succeeded: bool
    printed: tuple[str, ...]
    error: str = ""
    log: str = ""


CHECKPOINT = (
    ("--output_dir=states", "--partial_train_epoch=1"),
    ("--output_dir=states", "--resume_from_checkpoint=states/epoch_0"),
)
SCRIPTS = (
    *(Run("test_cli.py", n, data=False) for n in (1, 2)),
    *(Run("test_script.py", n, data=False) for n in (1, 2, 3)),
    *(Run("test_ops.py", n, data=False) for n in (1, 2, 3)),
    *(Run("test_sync.py", n, data=False) for n in (1, 2, 3)),
    *(Run(name, 2, launched=True, data=False) for name in ("test_script.py", "test_ops.py", "test_sync.py")),
    Run("test_sync.py", 1, launched=True, data=False),
    *(Run("test_distributed_data_loop.py", n, data=False) for n in (1, 2, 3)),
    *(Run("test_ddp_comm_hook.py", n, data=False) for n in (1, 2)),
    *(Run("test_notebook.py", n, alone=True, data=False) for n in (1, 2)),
    *(Run("test_merge_weights.py", n, data=False) for n in (1, 2)),
    *(Run("external_deps/test_metrics.py", n) for n in (1, 2, 3)),
    Run("external_deps/test_metrics.py", 2, launched=True),
    *(Run("external_deps/test_performance.py", n) for n in (1, 2)),
    *(Run("external_deps/test_checkpointing.py", n, CHECKPOINT) for n in (1, 2)),
    *(Run("external_deps/test_peak_memory_usage.py", n) for n in (1, 2)),
    *(Run("external_deps/test_pippy.py", n) for n in (1, 2)),
    Run("external_deps/test_zero3_integration.py", 1),
    Run("external_deps/test_ds_multiple_model.py", 1),
    Run("external_deps/test_ds_alst_ulysses_sp.py", 1),
)
BY_EPOCH = (
    ("--checkpointing_steps=epoch", "--output_dir=states"),
    ("--resume_from_checkpoint=states/epoch_0",),
)
BY_STEP = (("--checkpointing_steps=1", "--output_dir=states"), ("--resume_from_checkpoint=states/step_2",))
PETS = "--data_dir=pets"
ARGUMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "automatic_gradient_accumulation": ((),),
    "checkpointing": BY_EPOCH,
    "cross_validation": ((),),
    "ddp_comm_hook": (("--ddp_comm_hook=fp16",),),
    "early_stopping": ((),),
    "gradient_accumulation": (("--gradient_accumulation_steps=2",),),
    "gradient_accumulation_for_autoregressive_models": (("--gradient_accumulation_steps=2",),),
    "local_sgd": (("--local_sgd_steps=2",),),
    "memory": ((),),
    "multi_process_metrics": ((),),
    "profiler": (("--cpu",),),
    "schedule_free": ((),),
    "tracking": (("--with_tracking",),),
}
EXAMPLES = (
    *(Run(f"by_feature/{name}.py", n, words) for name, words in ARGUMENTS.items() for n in (1, 2)),
    *(Run("by_feature/checkpointing.py", n, BY_STEP) for n in (1, 2)),
    *(Run("nlp_example.py", n) for n in (1, 2)),
    *(Run("complete_nlp_example.py", n, words) for words in (BY_EPOCH, BY_STEP) for n in (1, 2)),
    *(Run("cv_example.py", n, ((PETS,),)) for n in (1, 2)),
    *(Run("complete_cv_example.py", n, tuple((PETS, *words) for words in BY_EPOCH)) for n in (1, 2)),
    *(Run("inference/distributed/phi2.py", n) for n in (1, 2)),
)
REASONS = {
    "test_script.py": (
        "DID NOT RAISE",
        "its last check: after `AcceleratorState._reset_state()` an `Accelerator` goes on as before",
    ),
    "test_notebook.py": (
        "DID NOT RAISE",
        "its last check: `notebook_launcher` refuses a notebook that has used a GPU, not one that imports bitsandbytes",
    ),
    "test_ops.py by debug_launcher": (
        "Num processes: 1",
        "with Accelerate, each process of `debug_launcher` is alone if it begins with a `PartialState`",
    ),
}
"""What differs on purpose: a sign in the error or in the changed lines, and the reason."""
RESUMED = (
    "loss",
    "a resumed epoch has the losses of the uninterrupted run, to the last digit; with Accelerate it has others",
)
REASONS["test_script.py by debug_launcher"] = REASONS["test_script.py"]
for state in ("epoch_0", "step_2"):
    for script in ("by_feature/checkpointing.py", "complete_nlp_example.py"):
        REASONS[f"{script} --resume_from_checkpoint=states/{state}"] = RESUMED
REASONS[f"complete_cv_example.py {PETS} --resume_from_checkpoint=states/epoch_0"] = RESUMED


def environment(run: Run, folder: str, *, accel: bool) -> dict[str, str]:
    """Return the variables of a run with one of the libraries."""
    return {
        "ACCELERATE_USE_CPU": "true",
        "ACCEL_FP16_ON_CPU": "true",
        "HF_HOME": str(Path(folder, "hf")),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(DROP_IN if accel else PEER),
        "TESTING_MOCKED_DATALOADERS": "1",
        **({"ACCELERATE_NUM_PROCESSES": str(run.num_processes)} if run.alone else {}),
    }


def outcome(run: Run, scripts: Path, *, accel: bool) -> Outcome:
    """Run a script with one of the libraries, in a separate folder."""
    options = ["--data"] if run.data else []
    if run.launched:
        options.append(f"--debug-launcher={run.num_processes}")
    printed: list[str] = []
    # Processes that import a library once for all runs with it are forked from one that has seen neither.
    os.environ.pop("PYTHONPATH", None)
    fork_server()
    os.environ["PYTHONPATH"] = str(DROP_IN if accel else PEER)
    with tempfile.TemporaryDirectory() as folder:
        if PETS in run.arguments[0]:
            peer_images.write_images(Path(folder, "pets"))
        for arguments in run.arguments:
            try:
                ended = run_script(
                    START,
                    *options,
                    str(scripts / run.script),
                    *arguments,
                    num_processes=1 if run.launched or run.alone else run.num_processes,
                    env=environment(run, folder, accel=accel),
                    cwd=folder,
                    timeout_s=LIMIT_S,
                    preload=("accel.drop_in" if accel else "accelerate", *PRELOAD) if run.data else (),
                )
            except subprocess.TimeoutExpired as expired:
                return Outcome(
                    succeeded=False,
                    printed=(),
                    error=f"runs longer than {LIMIT_S} s",
                    log=(expired.stderr or b"").decode(),
                )
            lines = normalized(ended.stdout, folder)
            # A profile has times of this run.
            printed += [
                line for line in lines if "profiler" not in run.script or line.startswith(("loss", "epoch"))
            ]
            if run.launched:  # with Accelerate each of its processes is local rank 0, and prints
                printed = [
                    line for line in dict.fromkeys(printed) if not line.startswith("Local process index")
                ]
            if ended.returncode != 0:
                return Outcome(
                    succeeded=False,
                    printed=tuple(sorted(printed)),
                    error=last_error(ended.stderr, ended.returncode),
                    log=ended.stderr,
                )
    return Outcome(succeeded=True, printed=tuple(sorted(printed)))


def normalized(text: str, folder: str) -> list[str]:
    """Return the lines of an output without what may differ from run to run, or by design."""
    lines = (line.strip().replace(folder, "FOLDER") for line in text.splitlines())
    return [re.sub(r"\bDistributedType\.|(?<=\bcpu):\d", "", line) for line in lines if line]


def last_error(errors: str, status: int) -> str:
    """Return the error that the first failing process ended with."""
    kind = r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Failed)"
    found = re.findall(rf"^(?:\[rank\d\]: )?({kind}(?::.*)?)$", errors, re.MULTILINE)
    # A process that has failed breaks the connections of the others.
    causes = [error for error in found if "gloo" not in error.lower() and "ConnectionReset" not in error]
    return (causes or found or [f"exit status {status}"])[-1]


def compare(run: Run, scripts: Path) -> tuple[str, str]:
    """Run a script with both libraries and return a verdict with a reason.

    Returns:
        ``same``, ``explained`` (in `REASONS`), ``more`` (only accel runs it here), ``neither`` (nor Accelerate,
        on this machine) or ``differs``.
    """
    if not PEER.is_dir():
        raise SystemExit(
            f"`{PEER}` is missing. Run `pip install --no-deps --target {PEER} accelerate=={peer_sources.RELEASE}`."
        )
    ours, theirs = (outcome(run, scripts, accel=accel) for accel in (True, False))
    if not theirs.succeeded:
        error = f"Accelerate: {theirs.error[:150]}"
        return ("more", error) if ours.succeeded else ("neither", f"{error}; accel: {ours.error[:150]}")
    if ours.succeeded and ours.printed == theirs.printed:
        return "same", f"{len(ours.printed)} lines"
    if ours.succeeded:
        changes = difflib.unified_diff(theirs.printed, ours.printed, lineterm="", n=0)
        difference = " ".join(line for line in changes if line[:2] not in ("--", "++", "@@"))
    else:
        difference = ours.error
    sign, reason = REASONS.get(run.name, ("", ""))
    # Up to a check that accel does not pass, everything is equal. What a process that begins with a `PartialState`
    # prints of it is not, if another process has started it: with Accelerate it is alone.
    is_equal_so_far = ours.succeeded or run.alone or not Counter(ours.printed) - Counter(theirs.printed)
    if reason and sign in difference and is_equal_so_far:
        return "explained", reason
    print(ours.log[-4000:], file=sys.stderr)
    return "differs", difference[:400]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these scripts")
    parser.add_argument(
        "--sdist", type=Path, help="Accelerate's source distribution; downloaded if not given"
    )
    parser.add_argument("--examples", type=Path, help="the folder of examples of Accelerate's repository")
    arguments = parser.parse_args()
    scripts = peer_sources.unpacked(arguments.sdist) / peer_sources.SCRIPTS
    runs = [(run, scripts) for run in SCRIPTS]
    if arguments.examples is not None:
        runs += [(run, arguments.examples) for run in EXAMPLES]
    print("| script | processes | result |\n|-|-|-|", flush=True)
    status = 0
    for run, folder in runs:
        if arguments.names and not any(name in run.name for name in arguments.names):
            continue
        verdict, reason = compare(run, folder)
        print(f"| {run.name} | {run.num_processes} | {verdict}: {reason} |", flush=True)
        status |= verdict == "differs"
    return status


if __name__ == "__main__":
    sys.exit(main())
