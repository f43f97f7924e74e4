from __future__ import annotations

import argparse
import sys

import pytest
import torch
from torch import nn

from accel_bigmodel import estimate_command, estimate_command_parser, gather_data
from accel_bigmodel.estimate.report import EstimateOptions, estimate

MODULE = """
from torch import nn
def net():
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
"""
TOTAL = 2 * (64 + 8) * 4


@pytest.fixture
def factory(tmp_path, monkeypatch):
    (tmp_path / "own_report_net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield "own_report_net:net"
    sys.modules.pop("own_report_net", None)


def test_rows_are_gathered_for_each_dtype(factory):
    args = argparse.Namespace(model_name=factory, dtypes=["float32", "float16", "int8"])
    full, half, eighth = gather_data(args)
    assert full[:3] == ["float32", TOTAL // 2, TOTAL]
    assert full[3] == {"model": TOTAL, "optimizer": 2 * TOTAL, "gradients": TOTAL, "step": 4 * TOTAL}
    assert half[1:3] == [TOTAL // 4, TOTAL // 2]
    assert half[3]["step"] == 2 * TOTAL
    assert eighth[3]["step"] == -1  # nobody trains in these
    rows = gather_data(argparse.Namespace(model_name=factory))
    assert [row[0] for row in rows] == ["float32", "float16", "int8", "int4"]


def test_the_parser_stands_alone_or_among_others(factory, capsys):
    args = estimate_command_parser().parse_args([factory, "--dtypes", "float32"])
    args.func(args)
    alone = capsys.readouterr().out
    parser = argparse.ArgumentParser()
    estimate_command_parser(parser.add_subparsers())
    args = parser.parse_args(["estimate-memory", factory, "--dtypes", "float32"])
    args.func(args)
    assert capsys.readouterr().out == alone
    estimate_command(argparse.Namespace(model_name=factory, dtypes=["float32"]))
    assert capsys.readouterr().out == alone
    assert "float32" in alone


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)


def test_a_block_that_the_model_does_not_split_counts_as_one_layer():
    with torch.device("meta"):
        model = nn.Sequential(Block(), nn.Linear(8, 8))
    question = EstimateOptions("m", dtypes=("float32",))
    assert estimate(model, question)["dtypes"]["float32"]["largest_layer"] == 72 * 4
    model._no_split_modules = ["Block"]
    assert estimate(model, question)["dtypes"]["float32"]["largest_layer"] == 128 * 4
