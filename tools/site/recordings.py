"""Which commands are recorded for each example, what its picture shows, and what it is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.site.plots.bars import Bars
from tools.site.plots.curves import WIDE, Curve, Curves, Logged, undisturbed
from tools.site.plots.sheet import BLUE, GREEN, ORANGE, Sheet
from tools.site.plots.tables import confusion
from tools.site.plots.traces import timeline
from tools.site.plots.trained import misread_digits, text_by_probability
from tools.site.recorded import Step

TWO = "accel launch --cpu --num_processes 2 docs/examples/"
FOUR = "accel launch --cpu --num_processes 4 docs/examples/"
ALONE = "python docs/examples/"


@dataclass(frozen=True)
class Recording:
    """How an example, or a claim of a guide, is shown.

    Args:
        alt: What one sees in its picture, for those who do not see it.
        commands: What is run and shown, in this order, at the root of a checkout.
        draw: Draws the picture from what they printed and left in a folder; if None, the example draws it.
        drawn: Where the example draws its picture; ``runs/NAME.png`` if empty.
        codes: Exit codes that are not 0, by the number of the command.
        setup: What is run before, and not shown.
        notebook: Whether the command executes a notebook, whose cells print.
        engine: The engine of ``tools/engines`` in whose environment the commands run.
    """

    alt: str
    commands: Sequence[str]
    draw: Callable[[Sequence[Step], Path, Path], None] | None = None
    drawn: str = ""
    codes: Mapping[int, int] = field(default_factory=dict)
    setup: Sequence[str] = ()
    engine: str | None = None
    notebook: bool = False


RIGHT_OF_EPOCH = r"epoch (\d+): (\d+) of 360"
LOSS_OF_STEP = r"(?m)^step (\d+): loss ([\d.]+)"
DIGITS = TWO + "digits.py"
SHARDED = (
    TWO + "sharded.py --ddp --stop_after 20",
    TWO + "sharded.py --stop_after 100",
    FOUR + "sharded.py --picture runs/sharded.png",
)
MERGE = "accel merge-weights runs/language/sharded/checkpoints/checkpoint_0/pytorch_model_fsdp_0 runs/language/merged"
FEATURES = (
    TWO + "image_classification.py --mixed_precision bf16 --gradient_accumulation_steps 2 --clip_norm 1"
    " --label_smoothing 0.1 --checkpointing_steps epoch --with_tracking"
)
TEXTS = (
    TWO
    + "text_classification.py --num_files 8 --epochs 4 --mixed_precision bf16 --by_lines --checkpointing_steps 20"
)
INSTALL = "python -m pip install -q --no-deps --no-index --no-build-isolation --target installed"
HOOKS = ("no", "fp16", "power_sgd", "power_sgd in fp16")

RECORDINGS = {
    "accumulation": Recording(
        alt="Four bars: all but batches of unequal size without num_items end at the weight 2.04",
        commands=[TWO + "accumulation.py"],
        draw=Sheet(
            [
                Bars(
                    r"^(.+?): +([\d.]+)$",
                    "The weight after one optimizer step over eight samples",
                    "weight; it must be 2.04",
                    colour=lambda found: BLUE if found[1] == "2.04000" else ORANGE,
                    target=2.04,
                )
            ],
            size=(7, 2.4),
        ),
    ),
    "automatic_batch_size": Recording(
        alt="Bars of 256, 128, 64 and 32 rows; only the last one fits",
        commands=[TWO + "automatic_batch_size.py --limit 40"],
        draw=Sheet(
            [
                Bars(
                    r"^trying ((\d+) rows)$",
                    "Half as many rows, until they fit on every rank",
                    "rows in a batch; 40 fit",
                    colour=lambda found: BLUE if int(found[1]) <= 40 else ORANGE,
                    told=lambda found: "fits" if int(found[1]) <= 40 else "out of memory",
                )
            ],
            size=(7, 2.4),
        ),
    ),
    "big_model": Recording(
        alt="A bar for each layer: the first blocks and the embedding in memory, the others in the checkpoint",
        commands=[ALONE + "big_model.py --picture runs/big_model.png"],
    ),
    "check_digits": Recording(
        alt="Scans of digits that the reloaded model gets wrong, each with its label and what the model reads",
        setup=[DIGITS],
        commands=[ALONE + "check_digits.py runs/digits"],
        draw=Sheet([misread_digits], size=(7, 2.2)),
    ),
    "checkpointing": Recording(
        alt="The loss of a run that was stopped after 30 steps and resumed lies on that of a run without a stop",
        commands=[
            TWO + "checkpointing.py --save_every 5 --stop_after 30",
            TWO + "checkpointing.py --save_every 5 --resume",
            TWO + "checkpointing.py --save_every 5 --resume epoch_0",
            TWO + "checkpointing.py --save_every 5 --output_dir runs/not_interrupted",
        ],
        draw=Sheet(
            [
                Curves(
                    [
                        undisturbed(LOSS_OF_STEP, step=3),
                        Curve("first run", LOSS_OF_STEP),
                        Curve("resumed", LOSS_OF_STEP, 1),
                    ],
                    "Stopped within an epoch, and resumed",
                    "step",
                    "loss",
                    mark=(r"stopping after step (\d+)", "stopped"),
                )
            ]
        ),
    ),
    "communication_hooks": Recording(
        alt="The losses without a hook, in fp16 and with PowerSGD fall alike",
        commands=[TWO + f"communication_hooks.py --hook {hook!r}" for hook in HOOKS],
        draw=Sheet(
            [
                Curves(
                    [
                        Curve(hook, r"loss after (\d+) steps ([\d.]+)", number)
                        for number, hook in enumerate(HOOKS)
                    ],
                    "A compressed gradient trains as well",
                    "step",
                    "loss",
                    more={"yscale": "log"},
                ),
            ],
        ),
    ),
    "comparing_runs": Recording(  # of the guide; no example is called so
        alt="Two processes with the rows in a step of one process train as it does; with twice as many they lag behind",
        commands=[
            ALONE + "schedule_free.py --batch_size 64",
            TWO + "schedule_free.py --batch_size 32",
            TWO + "schedule_free.py --batch_size 64",
        ],
        draw=Sheet(
            [
                Curves(
                    [
                        Curve("one process × 64 rows", RIGHT_OF_EPOCH, 0, WIDE),
                        Curve("two processes × 32 rows", RIGHT_OF_EPOCH, 1),
                        Curve("two processes × 64 rows", RIGHT_OF_EPOCH, 2),
                    ],
                    "The same rows in a step, or the same batch size",
                    "epoch",
                    "right, of 360",
                )
            ]
        ),
    ),
    "cross_validation": Recording(
        alt="The accuracy of each of five folds on the wines that were held out",
        commands=[TWO + "cross_validation.py --num_folds 5"],
        draw=Sheet(
            [
                Bars(
                    r"^(fold \d): \d+ held out, accuracy ([\d.]+)$",
                    "Each fold on the wines that it has not seen",
                    "accuracy",
                    more={"xlim": (0, 1.12)},
                )
            ],
            size=(7, 2.6),
        ),
    ),
    "deepspeed_zero3": Recording(
        alt="A falling loss: the first 30 steps on two ranks, the others on one",
        commands=[
            TWO + "deepspeed_zero3.py --stop_after 30",
            "accel launch --cpu --num_processes 1 docs/examples/deepspeed_zero3.py",
            ALONE + "deepspeed_zero3.py --check",
        ],
        draw=Sheet(
            [
                Curves(
                    [Curve("two ranks", LOSS_OF_STEP), Curve("resumed on one rank", LOSS_OF_STEP, 1)],
                    "ZeRO stage 3, resumed with another number of ranks",
                    "step",
                    "loss",
                    mark=(r"after step (\d+)", "stopped"),
                )
            ]
        ),
        engine="deepspeed",
    ),
    "diffusion": Recording(
        alt="Ten columns of images, from noise at the top to the digits 0 to 9 at the bottom",
        commands=[TWO + "diffusion.py --picture runs/diffusion.png"],
    ),
    "digits": Recording(
        alt="Training loss falling and held-out accuracy rising over twelve epochs",
        commands=[DIGITS, ALONE + "check_digits.py runs/digits"],
        drawn="runs/digits/curves.png",
    ),
    "distributed_inference": Recording(
        alt="A bar for the score of each prompt; process 0 answered the first four, process 1 the others",
        commands=[TWO + "distributed_inference.py"],
        draw=Sheet(
            [
                Bars(
                    r"^(\S.*?) +process (?=\d +(\S+))(\d)",
                    "Who answered which prompt: process 0 blue, process 1 orange",
                    "score",
                    colour=lambda found: (BLUE, ORANGE)[int(found[2])],
                )
            ],
        ),
    ),
    "early_stopping": Recording(
        alt="The training loss keeps falling; the held-out loss rises again, and training stops",
        commands=[TWO + "early_stopping.py"],
        draw=Sheet(
            [
                Curves(
                    [
                        Curve("training", r"epoch (\d+): loss ([\d.]+)", 0, {"marker": ""}),
                        Curve("held out", r"epoch (\d+): loss [\d.]+, held out ([\d.]+)", 0, {"marker": ""}),
                    ],
                    "Ten epochs without a better held-out loss",
                    "epoch",
                    "loss",
                    level=(r"best ([\d.]+)", "best, saved"),
                )
            ]
        ),
    ),
    "every_axis": Recording(
        alt="Loss curves of one model in every layout lie on top of each other; below, how far they are apart",
        commands=[ALONE + "every_axis.py --picture runs/every_axis.png"],
    ),
    "fp8": Recording(
        alt="The loss in 8 bits falls as that in bf16 does",
        commands=[TWO + "fp8.py", TWO + "fp8.py --precision bf16"],
        draw=Sheet(
            [
                Curves(
                    [
                        Curve("fp8", r"epoch (\d+): loss ([\d.]+)", 0, WIDE),
                        Curve("bf16", r"epoch (\d+): loss ([\d.]+)", 1),
                    ],
                    "The same training in 8 and in 16 bits",
                    "epoch",
                    "loss",
                )
            ]
        ),
    ),
    "gan": Recording(
        alt="Rows of generated digits: noise at the top, digits at the bottom",
        commands=[TWO + "gan.py --picture runs/gan.png"],
    ),
    "generate_text": Recording(
        alt="Text that a model wrote, byte by byte: spaces and ends of words are dark, since it was sure of them",
        setup=[TWO + "sharded.py", MERGE],
        commands=[ALONE + "generate_text.py runs/language/merged"],
        draw=Sheet([text_by_probability], size=(7, 2.2)),
    ),
    "image_classification": Recording(
        alt="Held-out accuracy over four epochs, with every feature off and on",
        commands=[
            ALONE + "image_classification.py",
            FEATURES,
            FEATURES + " --resume_from runs/images/epoch_1",
        ],
        draw=Sheet(
            [
                Curves(
                    [
                        Curve("features off", r"epoch (\d+): accuracy ([\d.]+)"),
                        Curve("features on", r"epoch (\d+): accuracy ([\d.]+)", 1),
                    ],
                    "Held-out scans",
                    "epoch",
                    "accuracy",
                    more={"ylim": (0, 1.02)},
                )
            ]
        ),
    ),
    "language_model": Recording(
        alt="The loss of a language model over 400 steps, which went on after a stop at step 200",
        commands=[
            TWO + "language_model.py --files 'docs/**/*.md' --steps 200",
            TWO + "language_model.py --files 'docs/**/*.md' --steps 400",
        ],
        draw=Sheet([Logged("loss", "Two runs of 200 steps, one curve")]),
    ),
    "local_sgd": Recording(
        alt="The difference between the weights of two ranks grows, and is 0 after every eighth step",
        commands=[TWO + "local_sgd.py"],
        draw=Sheet(
            [
                Curves(
                    [Curve("", r"step (\d+): ranks are apart by ([\d.]+)")],
                    "Two ranks drift apart, and average their weights every eight steps",
                    "step",
                    "largest difference",
                )
            ]
        ),
    ),
    "lora": Recording(
        alt="Left: in 4 bits the base model takes a sixth of the bytes. Right: the losses of LoRA and QLoRA fall alike",
        commands=[TWO + "lora.py", ALONE + "lora.py --quantize --output_dir runs/qlora"],
        draw=Sheet(
            [
                Bars(
                    r"^(base model) to adapt: ([\d,]+) ",
                    "The base model in memory",
                    "bytes",
                    labels=["LoRA", "QLoRA"],
                ),
                Curves(
                    [
                        Curve("LoRA", r"counting by 3, epoch (\d+): loss ([\d.]+)"),
                        Curve("QLoRA", r"counting by 3, epoch (\d+): loss ([\d.]+)", 1, {"linestyle": "--"}),
                    ],
                    "Learning to count in threes",
                    "epoch",
                    "loss",
                ),
            ],
            size=(8, 3),
        ),
    ),
    "metrics": Recording(
        alt="The confusion matrix of 285 samples, the same on one process and on three",
        commands=[ALONE + "metrics.py", "accel launch --cpu --num_processes 3 docs/examples/metrics.py"],
        draw=Sheet([confusion], size=(4, 3.4)),
    ),
    "notebook": Recording(
        alt="How many of 1,797 digits are read right, over three epochs",
        commands=["jupyter execute docs/examples/notebook.ipynb"],
        notebook=True,
        draw=Sheet(
            [Curves([Curve("", r"epoch (\d+): (\d+) of")], "Two processes of a notebook", "epoch", "right")]
        ),
    ),
    "own_strategy": Recording(
        alt="The losses with the strategy on two processes, and without on one: each pair is the same",
        setup=[f"{INSTALL} docs/examples/own_strategy"],
        commands=[TWO + "own_strategy/train.py"],
        draw=Sheet(
            [
                Curves(
                    [
                        Curve("two processes", r"step (\d+): loss ([\d.]+)", 0, WIDE),
                        Curve("one process", r"step (\d+): .*on one process ([\d.]+)"),
                    ],
                    "A custom strategy trains as one process does",
                    "step",
                    "loss",
                )
            ]
        ),
    ),
    "own_tracker": Recording(
        alt="The logged loss falls until it is below 0.001, where all ranks stop",
        commands=[TWO + "own_tracker.py --project_dir runs/tracked"],
        draw=Sheet([Logged("loss", "All ranks stop when one is below 0.001", "epoch", {"yscale": "log"})]),
    ),
    "preemption": Recording(
        alt="The loss of a preempted and resumed run lies on that of a run that nobody disturbed",
        commands=[
            TWO + "preemption.py --project_dir runs/preempted --step_s 0.02 --stop_at 40",
            TWO + "preemption.py --project_dir runs/preempted",
            TWO + "preemption.py --project_dir runs/not_interrupted",
        ],
        codes={0: 75},
        draw=Sheet(
            [
                Curves(
                    [
                        undisturbed(LOSS_OF_STEP, step=2),
                        Curve("first run", LOSS_OF_STEP),
                        Curve("resumed", LOSS_OF_STEP, 1),
                    ],
                    "Told to stop, and started again",
                    "step",
                    "loss",
                    more={"yscale": "log"},
                )
            ]
        ),
    ),
    "profiling": Recording(
        alt="A timeline of three training steps: operators, backward, optimizer",
        commands=[ALONE + "profiling.py --output_dir runs/profile"],
        draw=Sheet([timeline], size=(8, 2.6)),
    ),
    "reinforcement_learning": Recording(
        alt="The number of moves in a game, of at most 200, rises over 60 rounds",
        commands=[TWO + "reinforcement_learning.py"],
        draw=Sheet(
            [
                Curves(
                    [Curve("", r"round (\d+): (\d+) moves", 0, {"color": GREEN})],
                    "How long the pole is balanced",
                    "round",
                    "moves in a game",
                    more={"ylim": (0, 205)},
                )
            ]
        ),
    ),
    "schedule_free": Recording(
        alt="How many of 360 digits are read right rises over five epochs without a schedule",
        commands=[TWO + "schedule_free.py"],
        draw=Sheet(
            [
                Curves(
                    [Curve("", RIGHT_OF_EPOCH)],
                    "No learning-rate schedule",
                    "epoch",
                    "right, of 360",
                )
            ]
        ),
    ),
    "sharded": Recording(
        alt="Parameters, gradients, optimizer state and measured peak of one rank: DDP, and sharded over two and four",
        commands=SHARDED,
    ),
    "text_classification": Recording(
        alt="The share of lines that are told right lies above that of always giving the same answer",
        commands=[TEXTS, TEXTS + " --resume_from runs/texts/step_20"],
        draw=Sheet(
            [
                Curves(
                    [Curve("transformer", r"epoch (\d+): \d+ of \d+ lines right, ([\d.]+)")],
                    "Comment or code?",
                    "epoch",
                    "right, of all lines",
                    level=(r"always the same answer: ([\d.]+)", "always the same answer"),
                    more={"ylim": (0.5, 1)},
                )
            ]
        ),
    ),
}
