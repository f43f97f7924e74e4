"""Merge the weights that a sharded run saved into files that plain PyTorch reads.

Imports torch only when it merges.
"""

from __future__ import annotations

import argparse
import sys


class MergeCommand:
    """``accel merge-weights``."""

    help = "Merge the weights that a sharded run saved into files that plain PyTorch reads"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags."""
        parser.add_argument(
            "checkpoint_directory", help="a folder with the parts, such as pytorch_model_fsdp_0"
        )
        parser.add_argument("output_path", nargs="?", default=".", help="the folder for the merged weights")
        parser.add_argument(
            "--unsafe_serialization",
            "--unsafe-serialization",
            action="store_true",
            help="write pytorch_model.bin instead of model.safetensors",
        )
        parser.add_argument(
            "--remove_checkpoint_dir",
            "--remove-checkpoint-dir",
            action="store_true",
            help="remove the folder with the parts when the merged weights are complete",
        )
        parser.add_argument(
            "--max_shard_size",
            "--max-shard-size",
            help="largest size of one file, such as 5GB; by default one file",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Merge, and print the folder of the weights."""
        from accel_checkpoint.merging import merge_fsdp_weights

        merge_fsdp_weights(
            arguments.checkpoint_directory,
            arguments.output_path,
            safe_serialization=not arguments.unsafe_serialization,
            remove_checkpoint_dir=arguments.remove_checkpoint_dir,
            max_shard_size=arguments.max_shard_size,
        )
        sys.stdout.write(f"The merged weights are in `{arguments.output_path}`.\n")
        return 0


command = MergeCommand()
