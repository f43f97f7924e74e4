"""``accel.commands.merge``, which scripts import."""

import argparse

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from accel.commands.merge import merge_command, merge_command_parser


def test_code_merges_with_the_parser_of_the_command(tmp_path):
    parts, values = tmp_path / "pytorch_model_fsdp_0", torch.arange(3.0)
    dcp.save({"model": {"weight": values}}, checkpoint_id=parts, no_dist=True)
    merge_command(merge_command_parser().parse_args([str(parts), str(tmp_path)]))
    assert torch.equal(load_file(tmp_path / "model.safetensors")["weight"], values)


def test_the_parser_can_be_a_part_of_another():
    parser = argparse.ArgumentParser()
    merge_command_parser(parser.add_subparsers())
    arguments = parser.parse_args(["merge-weights", "parts", "merged", "--unsafe_serialization"])
    assert (arguments.func, arguments.output_path) == (merge_command, "merged")
