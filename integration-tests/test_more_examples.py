"""The examples that people start from run on one process and on two, with their features off and on."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import preloaded
import pytest
from recordings import assert_as_recorded
from safetensors.torch import load_file

from tools.harness.scripts import accel_launch, run_command, run_script

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
pytestmark = pytest.mark.engine("long")


def launch(name, *arguments, num_processes, preload=preloaded.EXAMPLES, env=None):
    words = (EXAMPLES / name, *map(str, arguments))
    done = run_script(*words, num_processes=num_processes, timeout_s=180, preload=preload, env=env)
    assert done.returncode == 0, done.stderr
    assert_as_recorded(EXAMPLES / name, done.stdout)
    return done.stdout


def on_two(name, *arguments):
    return launch(name, *arguments, num_processes=2)


def numbers(text, pattern):
    """Return the numbers that a pattern with groups finds first in a text."""
    found = re.search(pattern, text)
    assert found is not None, text
    return [float(number) for number in found.groups()]


def image_classification(folder):
    """Everything off on one process; on two everything on, and resumed from the first epoch."""
    features = [
        *(
            "--mixed_precision",
            "bf16",
            "--gradient_accumulation_steps",
            2,
            "--clip_norm",
            1,
            "--label_smoothing",
            0.1,
        ),
        *(
            "--epochs",
            2,
            "--checkpointing_steps",
            "epoch",
            "--with_tracking",
            "--freeze_stem",
            "--num_workers",
            1,
        ),
        "--output_dir",
    ]
    steps = ("--epochs", 2, "--checkpointing_steps", 20, "--output_dir", folder / "off")
    off = launch("image_classification.py", *steps, num_processes=1)
    on = launch("image_classification.py", *features, folder / "on", num_processes=2)
    resume = ("--resume_from", folder / "on" / "epoch_0")
    resumed = launch("image_classification.py", *features, folder / "resumed", *resume, num_processes=2)
    return off, on, resumed, folder


@pytest.mark.parametrize("outcome", [image_classification], ids=[""], indirect=True)
def test_images_are_classified_with_every_feature_off_and_on(outcome):
    off, on, resumed, folder = outcome
    assert numbers(off, r"epoch 1: accuracy ([\d.]+)")[0] > 0.6
    assert numbers(on, r"epoch 1: accuracy ([\d.]+)")[0] > 0.5
    assert any((folder / "on").rglob("events.out.tfevents*"))
    assert {path.name for path in (folder / "off").glob("step_*")} == {
        "step_20",
        "step_40",
        "step_60",
        "step_80",
    }
    assert resumed.splitlines()[1:] == on.splitlines()[1:]
    weights = [load_file(folder / run / "weights" / "model.safetensors") for run in ("on", "resumed")]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def text_classification(folder):
    """Everything off on one process; on two everything on, and resumed from the middle of the first epoch."""
    words = ("text_classification.py", "--num_files", 5, "--epochs", 1, "--output_dir")
    features = [
        *("--mixed_precision", "bf16", "--gradient_accumulation_steps", 2, "--by_lines", "--clip_norm", 1),
        *("--warmup_steps", 5, "--checkpointing_steps", 2, "--with_tracking"),
    ]
    off = launch(*words, folder / "off", num_processes=1)
    on = launch(*words, folder / "on", *features, num_processes=2)
    resume = ("--resume_from", folder / "on" / "step_2")
    resumed = launch(*words, folder / "resumed", *features, *resume, num_processes=2)
    return off, on, resumed, folder


@pytest.mark.parametrize("outcome", [text_classification], ids=[""], indirect=True)
def test_texts_are_classified_with_every_feature_off_and_on(outcome):
    off, on, resumed, folder = outcome
    for printed in (off, on):
        assert numbers(printed, r"epoch 0: \d+ of \d+ lines right, ([\d.]+)")[0] > 0.6
    assert numbers(off, r"of (\d+) lines") == numbers(on, r"of (\d+) lines")
    assert len(list((folder / "on").glob("step_*"))) > 1
    (log,) = (folder / "resumed").rglob("*.jsonl")
    assert '"step": 3' in log.read_text()  # counts on, and does not begin again
    assert resumed.splitlines()[1:] == on.splitlines()
    weights = [load_file(folder / run / "weights" / "model.safetensors") for run in ("on", "resumed")]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def language_model(folder):
    """Stop after some steps on one process, and continue; and train on two."""
    words = (
        "--files",
        EXAMPLES / "*.py",
        "--width",
        32,
        "--num_blocks",
        1,
        "--length",
        64,
        "--save_every",
        10,
    )
    project = ("--project_dir", folder / "alone")
    alone = [
        launch("language_model.py", *words, *project, "--steps", steps, num_processes=1) for steps in (20, 40)
    ]
    two = launch("language_model.py", *words, "--project_dir", folder / "two", "--steps", 20, num_processes=2)
    return alone, two, folder


@pytest.mark.parametrize("outcome", [language_model], ids=[""], indirect=True)
def test_a_language_model_learns_and_continues(outcome):
    (first, second), two, folder = outcome
    pattern = r"held out: ([\d.]+) bits per byte, (\d+) windows"
    assert "resuming after step 20" in second
    assert numbers(second, pattern)[0] < numbers(first, pattern)[0] < 8
    assert numbers(two, pattern)[1] == numbers(first, pattern)[1]
    (log,) = (folder / "alone").rglob("*.jsonl")
    steps = [json.loads(line).get("step") for line in log.read_text().splitlines()]
    assert [step for step in steps if step is not None] == [10, 20, 30, 40]


def lora(folder):
    """Quantized on one process, sharded on two."""
    epochs = {1: 2, 2: 4}  # as many steps
    sharded = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    ways = [("quantized", 1, {}), ("sharded", 2, sharded)]
    printed = [
        launch(
            *("lora.py", *(["--quantize"] if name == "quantized" else [])),
            *("--epochs", epochs[number], "--output_dir", folder / f"{name}_{number}"),
            num_processes=number,
            preload=preloaded.ADAPTERS,
            env=env,
        )
        for name, number, env in ways
    ]
    return printed, folder


@pytest.mark.parametrize("outcome", [lora], ids=[""], indirect=True)
def test_adapters_learn_what_the_model_could_not(outcome):
    printed, folder = outcome
    for text in printed:
        assert numbers(text, r"base model to adapt: .* counts on ([\d.]+)")[0] > 0.9
        before, after = re.findall(r"in threes ([\d.]+)", text)
        assert float(before) < 0.3
        assert float(after) > 0.9
    for run in ("quantized_1", "sharded_2"):
        sizes = [
            (folder / run / part).stat().st_size
            for part in ("base/model.safetensors", "adapters/adapter_model.safetensors")
        ]
        assert sizes[1] < sizes[0] / 4


def drawings(folder):
    """A GAN and a diffusion model, briefly."""
    return {
        "gan": on_two("gan.py", "--epochs", 10, "--picture", folder / "gan.png"),
        "diffusion": on_two(
            "diffusion.py", "--epochs", 12, "--output_dir", folder, "--picture", folder / "diffusion.png"
        ),
        "folder": folder,
    }


@pytest.mark.parametrize("outcome", [drawings], ids=[""], indirect=True)
def test_models_learn_to_draw(outcome):
    assert numbers(outcome["gan"], r"off by ([\d.]+) of 1")[0] < 0.3
    assert numbers(outcome["diffusion"], r"guessed noise ([\d.]+)")[0] < 0.7
    assert numbers(outcome["diffusion"], r"(\d+) of 30 drawings")[0] > 6  # 3 by chance
    assert any(
        name.startswith("layers.0.")
        for name in load_file(outcome["folder"] / "weights" / "model.safetensors")
    )
    for name in ("gan", "diffusion"):
        assert (outcome["folder"] / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def reinforcement_learning(folder):
    return on_two("reinforcement_learning.py", "--rounds", 15)


@pytest.mark.parametrize("outcome", [reinforcement_learning], ids=[""], indirect=True)
def test_players_learn_from_the_games_of_all(outcome):
    first, *_, last = (float(count) for count in re.findall(r"round \d+: (\d+) moves", outcome))
    assert last > 2 * first


def small(folder):
    """Examples that take a second or two."""
    return {
        "cross_validation": on_two("cross_validation.py"),
        "early_stopping": on_two("early_stopping.py", "--output_dir", folder),
        "automatic_batch_size": [
            launch("automatic_batch_size.py", num_processes=number) for number in (1, 2)
        ],
        "schedule_free": on_two("schedule_free.py", "--epochs", 3),
        "metrics": [launch("metrics.py", num_processes=number) for number in (1, 3)],
        "fp8": on_two("fp8.py", "--epochs", 3),
    }


@pytest.mark.parametrize("outcome", [small], ids=[""], indirect=True)
class TestSmallExamples:
    def test_folds_hold_out_every_wine_once(self, outcome):
        printed = outcome["cross_validation"]
        held_out = re.findall(r"fold \d: (\d+) held out, accuracy ([\d.]+)", printed)
        assert sum(int(count) for count, _ in held_out) == 142
        assert numbers(printed, r"together: (\d+) of 36")[0] > 30

    def test_training_ends_when_the_held_out_loss_has_risen(self, outcome):
        pattern = r"after (\d+) epochs: best ([\d.]+), now ([\d.]+)"
        epochs, best, now = numbers(outcome["early_stopping"], pattern)
        assert 10 < epochs < 200
        assert best < now

    def test_the_largest_batch_that_fits_everywhere_is_found(self, outcome):
        alone, two = (numbers(text, r"(\d+) rows fit")[0] for text in outcome["automatic_batch_size"])
        assert alone == two == 32  # of 40 that fit, in halves of 256

    def test_an_optimizer_with_modes_trains(self, outcome):
        assert numbers(outcome["schedule_free"], r"epoch 2: (\d+) of 360")[0] > 300

    def test_metrics_are_those_of_one_process(self, outcome):
        one, three = outcome["metrics"]
        assert one.startswith("285 samples, 285 names, in order: True\nF1 ")
        assert three == one

    def test_a_model_learns_in_8_bits(self, outcome):
        assert numbers(outcome["fp8"], r"(\d+) of 360 right")[0] > 300


def checkpointing(folder):
    calm, torn = ("--output_dir", folder / "calm"), ("--output_dir", folder / "torn")
    printed = {"calm": launch("checkpointing.py", *calm, num_processes=2)}
    launch("checkpointing.py", *torn, "--stop_after", 30, num_processes=2)
    printed["newest"] = launch("checkpointing.py", *torn, "--resume", num_processes=2)
    printed["epoch"] = launch("checkpointing.py", *torn, "--resume", "epoch_0", num_processes=2)
    return printed


@pytest.mark.parametrize("outcome", [checkpointing], ids=[""], indirect=True)
def test_runs_continue_from_steps_and_epochs_bit_for_bit(outcome):
    assert outcome["newest"].startswith("resuming from step_30, step 30, epoch 1\n")
    assert outcome["epoch"].startswith("resuming from epoch_0, step 20, epoch 1\n")
    last = outcome["calm"].splitlines()[-1]
    assert last.startswith("step 60: sum of the weights")
    assert outcome["newest"].splitlines()[-1] == outcome["epoch"].splitlines()[-1] == last


def own_strategy(folder):
    """Install the package as a user does, and launch its script."""
    source = shutil.copytree(EXAMPLES / "own_strategy", folder / "package")
    install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
    ]
    installed = run_command([sys.executable, *install, str(folder / "installed"), str(source)])
    assert installed.returncode == 0, installed.stderr
    path = os.pathsep.join([str(folder / "installed"), os.environ.get("PYTHONPATH", "")])
    runs = [
        accel_launch(source / "train.py", num_processes=number, env={"PYTHONPATH": path}) for number in (1, 2)
    ]
    for done in runs:
        assert done.returncode == 0, done.stderr
        assert_as_recorded(EXAMPLES / "own_strategy" / "train.py", done.stdout)
    return [done.stdout for done in runs]


@pytest.mark.parametrize("outcome", [own_strategy], ids=[""], indirect=True)
def test_a_strategy_of_another_package_trains_like_one_process(outcome):
    for printed in outcome:
        assert numbers(printed, r"`delayed_averaging` and one process differ by ([\d.e-]+)")[0] < 1e-14


def test_the_notebook_trains_and_reads_what_was_saved(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    texts = ["".join(output.get("text", "") for output in cell.get("outputs", ())) for cell in notebook.cells]
    assert_as_recorded(EXAMPLES / "notebook.ipynb", texts[5] + texts[7])
    assert "epoch 2:" in texts[5]
    assert numbers(texts[7], r"accuracy of the saved model: ([\d.]+)")[0] > 0.9
