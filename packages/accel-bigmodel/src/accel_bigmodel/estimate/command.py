"""Estimate the memory that a model takes to load, to train and to run."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from accel_bigmodel.estimate.choices import DEFAULT_DTYPES, DTYPES, STRATEGIES


class EstimateMemoryCommand:
    """``accel estimate-memory``."""

    help = "Estimate the memory that a model takes to load, to train and to run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags."""
        parser.add_argument(
            "model_name",
            help="a folder, a config.json, the name of a model on the Hub, or `module:factory`",
        )
        parser.add_argument(
            "--library_name", choices=("timm", "transformers"), help="the library that defines the model"
        )
        parser.add_argument(
            "--dtypes",
            nargs="+",
            default=list(DEFAULT_DTYPES),
            choices=DTYPES,
            help="dtypes to show, one row each",
        )
        parser.add_argument(
            "--trust_remote_code", action="store_true", help="run code from the Hub; read it first"
        )
        parser.add_argument(
            "--strategy",
            choices=STRATEGIES,
            help="show the memory of training per process with this strategy",
        )
        parser.add_argument(
            "--num_processes", type=int, default=1, help="number of training processes (default 1)"
        )
        parser.add_argument(
            "--batch_size", type=int, help="show activations and KV cache for this batch size"
        )
        parser.add_argument(
            "--sequence_length", type=int, default=512, help="tokens per sample (default 512)"
        )
        parser.add_argument("--json", action="store_true", help="print bytes as JSON")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the estimate."""
        from accel_bigmodel.estimate.models import create_empty_model
        from accel_bigmodel.estimate.report import EstimateOptions, as_text, estimate

        model = create_empty_model(arguments.model_name, arguments.library_name, arguments.trust_remote_code)
        options = EstimateOptions(
            name=arguments.model_name, dtypes=tuple(arguments.dtypes), strategy=arguments.strategy,
            num_processes=arguments.num_processes, batch_size=arguments.batch_size,
            sequence_length=arguments.sequence_length,
        )  # fmt: skip
        result: dict[str, Any] = estimate(model, options)
        sys.stdout.write((json.dumps(result, indent=2) if arguments.json else as_text(result)) + "\n")
        return 0


command = EstimateMemoryCommand()


def estimate_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of ``accel estimate-memory``, on its own or added to ``subparsers``.

    The parsed arguments have `estimate_command` as ``func``.
    """
    parser: argparse.ArgumentParser = (
        argparse.ArgumentParser(prog="accel estimate-memory", description=command.help)
        if subparsers is None
        else subparsers.add_parser("estimate-memory", help=command.help)
    )
    command.add_arguments(parser)
    parser.set_defaults(func=estimate_command)
    return parser


def estimate_command(args: argparse.Namespace) -> None:
    """Print the estimate for ``args``; missing flags take their defaults."""
    given = {name: value for name, value in vars(args).items() if name != "model_name"}
    asked = estimate_command_parser().parse_args([args.model_name], argparse.Namespace(**given))
    command.run(asked)
