"""Show how a model would be sharded: its units, and what each rank holds."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from accel_state.errors import ConfigError


class PlanCommand:
    """``accel plan``; computes on a model without weights, and starts no process."""

    help = "Show how a model would be sharded: its units, and what each rank holds"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags."""
        parser.add_argument(
            "model_name",
            metavar="MODEL",
            help="a folder, a config.json, the name of a model on the Hub, or `module:factory`",
        )
        parser.add_argument("--num_processes", type=int, default=1, help="number of processes (default 1)")
        parser.add_argument(
            "--dp_replicate_size",
            type=int,
            default=1,
            help="number of copies of the sharded model (default 1)",
        )
        parser.add_argument(
            "--tp_size", type=int, default=1, help="number of ranks that share each layer (default 1)"
        )
        parser.add_argument(
            "--fsdp_auto_wrap_policy",
            metavar="POLICY",
            help="TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP; by default the plan of the model",
        )
        parser.add_argument(
            "--fsdp_transformer_layer_cls_to_wrap",
            metavar="NAMES",
            help="classes that become units, separated by commas",
        )
        parser.add_argument(
            "--fsdp_min_num_params", type=int, help="number of parameters from which a module becomes a unit"
        )
        parser.add_argument(
            "--library_name", choices=("timm", "transformers"), help="the library that defines the model"
        )
        parser.add_argument(
            "--trust_remote_code", action="store_true", help="run code from the Hub; read it first"
        )
        parser.add_argument("--picture", metavar="FILE", type=Path, help="draw the plan into this SVG file")
        parser.add_argument("--json", action="store_true", help="print bytes as JSON")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the plan, and draw it if asked."""
        _check_sizes(arguments)
        _check_picture(arguments.picture)
        from accel.plan_report.picture import as_svg
        from accel.plan_report.table import as_data, as_text
        from accel_backends.plans.memory import plan_memory
        from accel_backends.plans.policies import units_policy
        from accel_backends.plans.sources import resolve_plan
        from accel_bigmodel.estimate.models import create_empty_model

        name = arguments.model_name
        model = create_empty_model(name, arguments.library_name, arguments.trust_remote_code)
        classes = arguments.fsdp_transformer_layer_cls_to_wrap
        policy = units_policy(
            arguments.fsdp_auto_wrap_policy,
            class_names=[part.strip() for part in classes.split(",")] if classes else None,
            min_num_params=arguments.fsdp_min_num_params,
        )
        planned = plan_memory(
            model,
            resolve_plan(model, policy=policy),
            num_shards=arguments.num_processes // arguments.dp_replicate_size // arguments.tp_size,
            num_replicas=arguments.dp_replicate_size,
            num_sharing=arguments.tp_size,
        )
        if arguments.picture is not None:
            _write_picture(arguments.picture, as_svg(planned, name=name))
        text = (
            json.dumps(as_data(planned, name=name), indent=2)
            if arguments.json
            else as_text(planned, name=name)
        )
        sys.stdout.write(text + "\n")
        return 0


def _check_sizes(arguments: argparse.Namespace) -> None:
    processes, copies = arguments.num_processes, arguments.dp_replicate_size
    for name in ("num_processes", "dp_replicate_size", "tp_size"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"`--{name}` must be at least 1, got {getattr(arguments, name)}.")
    if processes % copies:
        raise ConfigError(
            f"`--dp_replicate_size` must divide `--num_processes`, which is {processes}, got {copies}."
        )
    if processes // copies % arguments.tp_size:
        raise ConfigError(
            f"`--tp_size` must divide the {processes // copies} ranks of a copy of the model, got {arguments.tp_size}."
        )
    if arguments.fsdp_auto_wrap_policy is None and (
        arguments.fsdp_transformer_layer_cls_to_wrap or arguments.fsdp_min_num_params is not None
    ):
        raise ConfigError(
            "`--fsdp_transformer_layer_cls_to_wrap` and `--fsdp_min_num_params` have no effect without "
            "`--fsdp_auto_wrap_policy`. Add it, with `TRANSFORMER_BASED_WRAP` or `SIZE_BASED_WRAP`."
        )


def _write_picture(picture: Path, svg: str) -> None:
    try:
        picture.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"`--picture` cannot write `{picture}`: {error.strerror}. Choose another file."
        ) from error


def _check_picture(picture: Path | None) -> None:
    if picture is None:
        return
    if picture.suffix.lower() != ".svg":
        raise ConfigError(f"`--picture` writes SVG, so its name must end in `.svg`, got `{picture}`.")
    if not picture.parent.is_dir():
        raise ConfigError(
            f"`--picture` cannot write `{picture}`: there is no folder `{picture.parent}`. Create it."
        )


command = PlanCommand()
