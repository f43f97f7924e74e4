"""Show how a model would be sharded over ranks: its units, and the memory and traffic of each rank."""

# ruff: noqa: E501 -- a flag is a line

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from accel.planning.step import Step
    from accel_backends.plans.plan import ParallelPlan
    from accel_state.mesh_layout import MeshLayout

_AXES = {
    "dp_replicate": "replicas of the sharded model",
    "dp_shard": "ranks over which each replica is sharded (default: the remaining ones)",
    "tp": "tensor-parallel ranks, which shard each layer",
    "pp": "pipeline stages",
    "cp": "context-parallel ranks, which shard each sequence",
    "sp": "sequence-parallel ranks, which shard each sequence, and attention by heads",
    "ep": "expert-parallel ranks, a subdivision of the data-parallel ranks",
}
_POSITIVE = ("num_processes", "batch_size", "sequence_length", *(f"{axis}_size" for axis in _AXES))
_FLAGS: dict[str, dict[str, Any]] = {
    "--num_processes": {"type": int, "help": "number of processes (default: the product of the sizes)"},
    **{f"--{axis}_size": {"type": int, "help": f"number of {meaning}"} for axis, meaning in _AXES.items()},
    "--batch_size": {"type": int, "default": 1, "help": "sequences of each rank that reads data (default 1)"},
    "--sequence_length": {"type": int, "metavar": "TOKENS", "help": "tokens of a sequence; with it, a step is run on tensors without values, which tells activations and traffic"},
    "--activation_checkpointing": {"action": "store_true", "help": "compute activations again in the backward pass"},
    "--cp_comm_strategy": {"choices": ("allgather", "alltoall"), "default": "allgather", "help": "how keys and values travel with --cp_size: gathered once, or again for the backward pass"},
    "--pp_schedule": {"choices": ("1f1b", "gpipe", "zero_bubble"), "default": "1f1b", "help": "how micro-batches pass through --pp_size stages (default 1f1b)"},
    "--mixed_precision": {"choices": ("no", "bf16", "fp16"), "default": "no", "help": "precision of the computation"},
    "--fit": {"metavar": "RANKS:MEMORY", "help": "propose layouts that fit, such as `64:80GB`; sorted by communication, least first"},
    "--fsdp_auto_wrap_policy": {"metavar": "POLICY", "help": "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP; by default the plan of the model"},
    "--fsdp_transformer_layer_cls_to_wrap": {"metavar": "NAMES", "help": "classes that become units, separated by commas"},
    "--fsdp_min_num_params": {"type": int, "help": "smallest number of parameters of a unit"},
    "--library_name": {"choices": ("timm", "transformers"), "help": "the library that defines the model"},
    "--trust_remote_code": {"action": "store_true", "help": "run code from the Hub; read it first"},
    "--json": {"action": "store_true", "help": "print bytes as JSON"},
}  # fmt: skip


class PlanCommand:
    """``accel plan``; prepares the model and runs a step without values and without other ranks, in this process."""

    help = "Show how a model would be sharded over ranks: its units, and the memory and traffic of each rank"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags."""
        parser.add_argument(
            "model_name",
            metavar="MODEL",
            help="a folder, a config.json, the name of a model on the Hub, or `module:factory`",
        )
        for flag, options in _FLAGS.items():
            parser.add_argument(flag, **options)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the plan, or propose layouts.

        Raises:
            ConfigError: If flags contradict each other, or the layout does not fit the model.
        """
        _check_flags(arguments)
        from accel_backends.plans.policies import units_policy
        from accel_backends.plans.sources import resolve_plan
        from accel_bigmodel.estimate.memory import create_empty_model

        model = create_empty_model(arguments.model_name, arguments.library_name, arguments.trust_remote_code)
        classes = arguments.fsdp_transformer_layer_cls_to_wrap
        policy = units_policy(
            arguments.fsdp_auto_wrap_policy,
            class_names=[part.strip() for part in classes.split(",")] if classes else None,
            min_num_params=arguments.fsdp_min_num_params,
        )
        show = _shown if arguments.fit is None else _proposed
        sys.stdout.write(show(model, resolve_plan(model, policy=policy), arguments) + "\n")
        return 0


def _shown(model: nn.Module, plan: ParallelPlan, arguments: argparse.Namespace) -> str:
    from accel.plan_report import plan_data, plan_text
    from accel.planning.step import model_sizes, planned_step
    from accel_state.layout_rules import check_layout

    layout = _layout(arguments)
    sizes = model_sizes(model, plan, sequence_length=arguments.sequence_length)
    num_processes = layout.world_size if arguments.num_processes is None else arguments.num_processes
    check_layout(layout, num_processes=num_processes, model=sizes)
    stages = planned_step(model, plan, layout, _step(arguments))
    data = plan_data(stages, name=arguments.model_name, layout=layout)
    return json.dumps(data, indent=2) if arguments.json else plan_text(data)


def _proposed(model: nn.Module, plan: ParallelPlan, arguments: argparse.Namespace) -> str:
    from accel.plan_report import failed_text, fitting_data, fitting_text
    from accel.planning.fitting import search

    num_ranks, memory = _fit(arguments.fit)
    found = search(model, plan, num_ranks=num_ranks, memory=memory, step=_step(arguments))
    sys.stderr.write(failed_text(found.failed))
    if arguments.json:
        return json.dumps(fitting_data(found.proposals, memory=memory), indent=2)
    size = arguments.fit.partition(":")[2]  # in the user's units
    wanted = f"`{arguments.model_name}` on {num_ranks} ranks of {size}"
    return fitting_text(found, memory=memory, wanted=wanted)


def _layout(arguments: argparse.Namespace) -> MeshLayout:
    """Return the requested layout; by default ``dp_shard`` has the ranks that no other axis uses."""
    from accel_state.mesh_layout import MeshLayout

    sizes = {axis: size for axis in _AXES if (size := getattr(arguments, f"{axis}_size")) is not None}
    if "dp_shard" not in sizes:
        others = MeshLayout(**{axis: size for axis, size in sizes.items() if axis != "ep"}).world_size
        sizes["dp_shard"] = max((arguments.num_processes or 1) // others, 1)
    return MeshLayout(**sizes)


def _step(arguments: argparse.Namespace) -> Step:
    from accel.planning.step import Step

    return Step(
        batch_size=arguments.batch_size,
        sequence_length=arguments.sequence_length,
        is_checkpointed=arguments.activation_checkpointing,
        mixed_precision=arguments.mixed_precision,
        cp_comm_strategy=arguments.cp_comm_strategy,
        schedule=arguments.pp_schedule,
    )


def _fit(words: str) -> tuple[int, int]:
    from accel_ops.byte_sizes import convert_file_size_to_int

    ranks, separator, memory = words.partition(":")
    if not separator or not ranks.isdecimal() or int(ranks) < 1:
        raise ConfigError(
            f"`--fit` is the number of ranks and the memory of each, such as `64:80GB`, got `{words}`. Pass both."
        )
    return int(ranks), convert_file_size_to_int(memory)


def _check_flags(arguments: argparse.Namespace) -> None:
    for name in _POSITIVE:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"`--{name}` must be at least 1, got {value}.")
    if arguments.fsdp_auto_wrap_policy is None and (
        arguments.fsdp_transformer_layer_cls_to_wrap or arguments.fsdp_min_num_params is not None
    ):
        raise ConfigError(
            "`--fsdp_transformer_layer_cls_to_wrap` and `--fsdp_min_num_params` have no effect without "
            "`--fsdp_auto_wrap_policy`. Add it, with `TRANSFORMER_BASED_WRAP` or `SIZE_BASED_WRAP`."
        )
    if arguments.fit is not None:
        idle = [axis for axis in _AXES if getattr(arguments, f"{axis}_size") is not None]
        if idle:
            raise ConfigError(
                f"`--{idle[0]}_size` has no effect with `--fit`, which proposes layouts. Leave one of them out."
            )


command = PlanCommand()
