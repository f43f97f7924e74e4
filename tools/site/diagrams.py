"""The drawings of the guides, from lists of boxes: ``python -m tools.site.diagrams`` writes them to ``docs/images``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tools.workspace import ROOT

IMAGES = ROOT / "docs" / "images"
UNIT_PX = 10
"""Boxes are placed on a grid of so many pixels."""
HEAD = (
    '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
    '<path d="M0 0L9 4L0 8z" fill="#456"/></marker></defs>'
)
COLOURS = {"plain": "#eef2f7", "accel": "#d6e4f5", "yours": "#fdebd0", "end": "#dff0d8"}


@dataclass(frozen=True, slots=True)
class Box:
    """A labeled rectangle, in units of the grid."""

    left: int
    top: int
    width: int
    height: int
    label: str
    kind: str = "plain"


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line with a head, in units of the grid."""

    start: tuple[int, int]
    end: tuple[int, int]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Text next to the boxes, to the right of a position, in units of the grid."""

    left: int
    middle: float
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes, arrows and notes on a sheet, in units of the grid."""

    title: str
    width: int
    height: int
    boxes: Sequence[Box]
    arrows: Sequence[Arrow] = ()
    notes: Sequence[Note] = ()


def as_svg(drawing: Drawing) -> str:
    """Return the drawing as SVG that reads on a white page."""
    width, height = drawing.width * UNIT_PX, drawing.height * UNIT_PX
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" text-anchor="middle">',
        f"<title>{escape(drawing.title)}</title>",
        HEAD,
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for box in drawing.boxes:
        left, top, wide, high = (value * UNIT_PX for value in (box.left, box.top, box.width, box.height))
        parts.append(
            f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" rx="5" fill="{COLOURS[box.kind]}"'
            ' stroke="#456"/>'
        )
        lines = box.label.split("\n")
        for number, line in enumerate(lines):
            middle = top + high / 2 + 16 * (number - (len(lines) - 1) / 2) + 4.5
            parts.append(
                f'<text x="{left + wide / 2:g}" y="{middle:g}" fill="#111" font-size="13">{escape(line)}</text>'
            )
    for arrow in drawing.arrows:
        (x1, y1), (x2, y2) = (tuple(UNIT_PX * value for value in point) for point in (arrow.start, arrow.end))
        parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#456" stroke-width="1.5" marker-end="url(#head)"/>'
        )
        if arrow.label:
            where = f'x="{(x1 + x2) / 2:g}" y="{(y1 + y2) / 2 - 6:g}"'
            parts.append(f'<text {where} fill="#345" font-size="12">{escape(arrow.label)}</text>')
    parts += [
        f'<text x="{note.left * UNIT_PX}" y="{note.middle * UNIT_PX + 4.5:g}" fill="#111" font-size="13"'
        f' text-anchor="start">{escape(note.text)}</text>'
        for note in drawing.notes
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _accumulation() -> Drawing:
    batches = [Box(2 + 13 * number, 5, 11, 4, "2 rows: backward\nloss ÷ 4", "yours") for number in range(4)]
    return Drawing(
        "Four batches of two rows, or one of eight: the same step",
        72,
        19,
        [
            *batches,
            Box(57, 5, 13, 4, "average, step", "accel"),
            Box(2, 12, 50, 4, "8 rows: backward", "yours"),
            Box(57, 12, 13, 4, "average, step", "accel"),
        ],
        [Arrow((52, 7), (57, 7)), Arrow((52, 14), (57, 14))],
    )


def _inside() -> Drawing:
    return Drawing(
        "From the command to a training step",
        84,
        37,
        [
            Box(2, 2, 18, 5, "flags, variables,\nconfig file"),
            Box(27, 2, 18, 5, "accel launch:\na plan", "accel"),
            Box(52, 2, 30, 5, "one process for each rank\n(variables say which)", "accel"),
            Box(52, 11, 30, 5, "Accelerator(): strategy,\nprecision, layout", "accel"),
            Box(27, 11, 18, 5, "prepare", "accel"),
            Box(2, 20, 14, 6, "loader: this\nrank's rows", "accel"),
            Box(19, 20, 12, 6, "your model", "yours"),
            Box(34, 20, 13, 6, "backward:\naverage", "accel"),
            Box(50, 20, 14, 6, "clip, step,\nschedule", "accel"),
            Box(67, 20, 15, 6, "log, save", "end"),
            Box(34, 31, 30, 4, "the other ranks"),
        ],
        [
            Arrow((20, 4), (27, 4)),
            Arrow((45, 4), (52, 4)),
            Arrow((67, 7), (67, 11)),
            Arrow((52, 13), (45, 13)),
            Arrow((36, 16), (9, 20)),
            Arrow((16, 23), (19, 23)),
            Arrow((31, 23), (34, 23)),
            Arrow((47, 23), (50, 23)),
            Arrow((64, 23), (67, 23)),
            Arrow((40, 26), (40, 31)),
            Arrow((43, 31), (43, 26)),
        ],
    )


def _data() -> Drawing:
    """Draw which rows the ranks read in each step, from the samplers' plan."""
    from accel_data.step import ShardPlan

    num_rows = 14
    layouts = (
        ("one process, batch_size=4", 1, 4),
        ("two processes, batch_size=4", 2, 4),
        ("two processes, batch_size=4, split_batches=True", 2, 2),
    )
    boxes, notes, top = [], [], 2
    for title, num_ranks, rows in layouts:
        notes.append(Note(2, top + 0.5, title))
        for rank in range(num_ranks):
            plan = ShardPlan(num_rows, rows, num_ranks, rank, even=num_ranks > 1, drop_last=False)
            line = top + 2 + 3 * rank
            notes.append(Note(2, line + 1, f"rank {rank}"))
            for step, (indices, _) in enumerate(plan.steps(range(num_rows))):
                left = 8 + step * (3 * rows + 2)
                for place, row in enumerate(indices):
                    is_repeated = (step * num_ranks + rank) * rows + place >= num_rows
                    kind = "plain" if is_repeated else ("accel", "yours")[rank]
                    boxes.append(Box(left + 3 * place, line, 3, 2, str(row), kind))
        top += 2 + 3 * num_ranks + 2
    notes.append(
        Note(
            2,
            top + 0.5,
            "A gap separates two steps. Grey: rows of the first step, which fill up the last one.",
        )
    )
    return Drawing("Which rows each process reads in each step", 60, top + 3, boxes, notes=notes)


def _launch(title: str, command: str, starters: tuple[str, str], meeting: str) -> Drawing:
    """Draw a command that starts something on each of two machines, which starts two ranks there.

    Args:
        command: The command line.
        starters: The programs that it starts on each machine.
        meeting: The address where the ranks meet.
    """
    boxes, arrows = [Box(2, 10, 19, 6, command)], []
    for machine, top in enumerate((2, 15)):
        boxes.append(Box(28, top + 1, 17, 7, f"{starters[machine]}\nthe ranks there", "accel"))
        arrows.append(Arrow((21, 12 + 2 * machine), (28, top + 5)))
        for place in range(2):
            boxes.append(Box(52, top + 5 * place, 15, 4, f"rank {2 * machine + place}: train.py", "yours"))
            arrows.append(Arrow((45, top + 4), (52, top + 2 + 5 * place)))
    boxes.append(Box(74, 9, 12, 8, f"process group:\nranks meet at\n{meeting}", "end"))
    arrows += [Arrow((67, top), (74, end)) for top, end in ((4, 11), (9, 12), (17, 14), (22, 15))]
    return Drawing(title, 88, 27, boxes, arrows)


def _launching() -> Drawing:
    return _launch(
        "One command, a launcher on each machine, a process for each rank",
        "accel launch\n--hosts node1,node2\ntrain.py",
        ("over ssh: a launcher\non node1 starts", "over ssh: a launcher\non node2 starts"),
        "node1:port",
    )


def _slurm() -> Drawing:
    return _launch(
        "A SLURM job, a task on each node, a process for each GPU",
        "in the job:\naccel launch\ntrain.py",
        ("by srun: a task\non node 0 starts", "by srun: a task\non node 1 starts"),
        "the first node",
    )


def _kubernetes() -> Drawing:
    return _launch(
        "A Kubernetes job, a pod for each machine, a process for each rank",
        "accel launch --launcher\nkubernetes\ntrain.py",
        ("in pod 0:\naccel launch starts", "in pod 1:\naccel launch starts"),
        "the first pod",
    )


def _stages() -> Drawing:
    """Draw the memory of each of four ranks for a parameter in training with Adam in fp32, a byte four units wide."""
    stages = (
        ("nothing: DDP, ZeRO 0", 1, 1, 1),
        ("states of the optimizer: ZeRO 1", 1, 1, 4),
        ("and gradients: ZeRO 2", 1, 4, 4),
        ("and parameters: FSDP, ZeRO 3", 4, 4, 4),
    )
    boxes, notes = [], []
    for number, (title, *shares) in enumerate(stages):
        top, left = 5 + 4 * number, 25
        notes.append(Note(2, top + 1.5, title))
        for width, share, kind in zip((4, 4, 8), shares, ("accel", "yours", "end"), strict=True):
            boxes.append(Box(left, top, 3 * width // share, 3, f"{width // share}", kind))
            left += 3 * width // share
    legend = (("parameter", "accel", 25), ("gradient", "yours", 37), ("Adam's two moments", "end", 49))
    boxes += [Box(left, 2, 12 if kind != "end" else 24, 2, label, kind) for label, kind, left in legend]
    notes.append(Note(2, 3, "sharded over four ranks"))
    notes.append(Note(25, 22, "bytes on one rank for each parameter of the model, in fp32"))
    return Drawing("What one of four ranks holds of each parameter", 76, 24, boxes, notes=notes)


def _trackers() -> Drawing:
    services = ("mlflow", "aim", "jsonl, wandb")
    tops = (2, 9, 16)
    return Drawing(
        "From the training loop to the trackers",
        82,
        22,
        [
            Box(2, 8, 16, 6, "accelerator.log\non the main process", "yours"),
            Box(25, 8, 14, 6, "copies of the\nvalues", "accel"),
            Box(46, 2, 16, 4, "queue and thread", "accel"),
            Box(46, 9, 16, 4, "queue and thread", "accel"),
            Box(46, 16, 16, 4, "called at once", "accel"),
            *(Box(68, top, 12, 4, name, "end") for name, top in zip(services, tops, strict=True)),
        ],
        [
            Arrow((18, 11), (25, 11)),
            *(Arrow((39, 11), (46, top + 2)) for top in tops),
            *(Arrow((62, top + 2), (68, top + 2)) for top in tops),
        ],
    )


DRAWINGS = {
    "accumulation": _accumulation,
    "data": _data,
    "inside": _inside,
    "kubernetes": _kubernetes,
    "launching": _launching,
    "slurm": _slurm,
    "stages": _stages,
    "trackers": _trackers,
}


def write(folder: Path) -> None:
    """Write every drawing into ``folder``."""
    for name, draw in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(as_svg(draw()), encoding="utf-8")


if __name__ == "__main__":
    write(IMAGES)
