"""Reload what `digits.py` saved, with only safetensors and plain PyTorch, and check that its accuracy is the same."""

import argparse
import json
import sys
from pathlib import Path

import torch
from digits import digits, network
from safetensors.torch import load_file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output_dir", type=Path, nargs="?", default=Path("runs/digits"))
    parser.add_argument("--at_least", type=float, default=0.97, help="accuracy below which the check fails")
    args = parser.parse_args()

    reported = json.loads((args.output_dir / "result.json").read_text())
    model = network()
    model.load_state_dict(load_file(args.output_dir / "model.safetensors"))
    images, labels = digits()[1].tensors
    with torch.no_grad():
        right = int((model(images).argmax(dim=1) == labels).sum())

    processes = "1 process" if reported["processes"] == 1 else f"{reported['processes']} processes"
    print(f"trained on {processes}: {reported['right']} of {reported['seen']} right")
    print(f"reloaded into plain PyTorch:    {right} of {len(labels)} right")
    print(f"picture  {args.output_dir / 'curves.png'}")
    print(f"logs     {args.output_dir / 'logs'}   (tensorboard --logdir {args.output_dir / 'logs'})")
    print(f"weights  {args.output_dir / 'model.safetensors'}")
    is_exact = reported["precision"] == "no" and reported["device"] == "cpu"
    slack = 0 if is_exact else 4  # the reload computes in fp32 on the CPU, the run did not
    if len(labels) != reported["seen"] or abs(right - reported["right"]) > slack:
        print("error: the reloaded model does not give the reported result", file=sys.stderr)
        return 1
    if right / len(labels) < args.at_least:
        print(f"error: accuracy {right / len(labels):.4f} is below {args.at_least}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
