"""What the processes of `test_megatron.py` do."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # for live processes
from cuda_on_cpu import cpu_for_cuda

from accel import Accelerator
from accel.utils import MegatronLMDummyScheduler, MegatronLMPlugin
from tools.gpu.megatron import batches, gpt2, load_gpt2, train_megatron, train_plain

SHAPE = {"num_tokens": 16, "vocabulary": 64}
MODEL = {"width": 32, "num_layers": 4, "num_heads": 4, **SHAPE}
EXACT = {"make_vocab_size_divisible_by": 1}
NUM_ROWS = 8
"""Rows of a step on all ranks."""


def source():
    """Return the model that all are compared with."""
    torch.manual_seed(0)
    return gpt2(**MODEL)


def rows():
    """Return the rows of six steps."""
    return batches(6 * NUM_ROWS, **SHAPE)


def plain():
    """Return the losses of plain PyTorch."""
    losses, _ = train_plain(source(), rows(), NUM_ROWS, device=torch.device("cpu"), dtype=None)
    return losses


def start(num_micro_batches=2, precision="no", **settings):
    """Return an accelerator with the prepared model, optimizer, scheduler and loader."""
    plugin = MegatronLMPlugin(num_micro_batches=num_micro_batches, other_megatron_args=dict(EXACT), **settings)
    accelerator = Accelerator(cpu=True, mixed_precision=precision, megatron_lm_plugin=plugin)
    model = source()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    size = NUM_ROWS // num_micro_batches // plugin.num_data_ranks
    engine, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows(), batch_size=size))
    load_gpt2(accelerator, engine, model)
    return accelerator, engine, optimizer, loader


def trained(settings, save_to=None, load_from=None):
    """Return the losses of a run, after loading and before saving."""
    with cpu_for_cuda():
        accelerator, engine, optimizer, loader = start(**settings)
        if load_from is not None:
            accelerator.load_state(load_from)
        losses, _ = train_megatron(accelerator, engine, optimizer, loader)
        if save_to is not None:
            accelerator.save_state(save_to)
        return losses, engine.grad_norm, accelerator.state.megatron_lm_plugin.global_batch_size


def groups(settings):
    """Return for some axes whether megatron-core's ranks are those of the layout, and this rank's place."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    accelerator = Accelerator(cpu=True, megatron_lm_plugin=MegatronLMPlugin(**settings))
    layout, rank = accelerator.state.layout, accelerator.process_index
    found = {
        ("tp",): parallel_state.get_tensor_model_parallel_group(),
        ("pp",): parallel_state.get_pipeline_model_parallel_group(),
        ("dp_replicate", "dp_shard"): parallel_state.get_data_parallel_group(),
    }
    are_same = [
        tuple(dist.get_process_group_ranks(group)) == layout.group_of(rank, *axes)
        for axes, group in found.items()
    ]
    return are_same, accelerator.distributed_type


def shapes(model, settings):
    """Return the shapes of this rank's part of a model, prepared to compute outputs only."""
    accelerator = Accelerator(cpu=True, megatron_lm_plugin=MegatronLMPlugin(**settings))
    part = accelerator.unwrap_model(accelerator.prepare(model()))
    return {name: tuple(parameter.shape) for name, parameter in part.named_parameters()}


def dealt(settings):
    """Return the first tokens of the rows that this rank reads."""
    plugin = MegatronLMPlugin(**settings)
    accelerator = Accelerator(cpu=True, megatron_lm_plugin=plugin)
    loader = accelerator.prepare(DataLoader([{"input_ids": torch.tensor([n])} for n in range(16)], batch_size=2))
    return [batch["input_ids"].flatten().tolist() for batch in loader], plugin.global_batch_size


def scheduled():
    """Return the learning rates of a schedule."""
    with cpu_for_cuda():
        plugin = MegatronLMPlugin(lr_decay_style="linear", other_megatron_args=dict(EXACT))
        accelerator = Accelerator(cpu=True, megatron_lm_plugin=plugin)
        model = source()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        dummy = MegatronLMDummyScheduler(optimizer, total_num_steps=4, warmup_num_steps=2)
        engine, optimizer, scheduler = accelerator.prepare(model, optimizer, dummy)
        rates = []
        for _ in range(4):
            loss = engine(**{name: torch.stack([row[name] for row in rows()[:2]]) for name in rows()[0]}).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            rates.append(scheduler.get_last_lr()[0])
        return rates


def generated(settings):
    """Return tokens from megatron-core and from transformers."""
    with cpu_for_cuda():
        plugin = MegatronLMPlugin(other_megatron_args=dict(EXACT), **settings)
        accelerator = Accelerator(cpu=True, megatron_lm_plugin=plugin)
        model = source().eval()
        engine = accelerator.prepare(model)
        load_gpt2(accelerator, engine, model)
        tokens = torch.tensor([[1, 4, 7, 10], [3, 5, 7, 9]])
        made = engine.megatron_generate(tokens, max_new_tokens=6)
        beams = engine.megatron_generate(tokens[:1], max_new_tokens=6, num_beams=3)
    expected = model.generate(tokens, max_new_tokens=6, do_sample=False, pad_token_id=0)
    expected_beams = model.generate(tokens[:1], max_new_tokens=6, num_beams=3, do_sample=False, pad_token_id=0)
    return (made.tolist(), beams.tolist()), (expected.tolist(), expected_beams.tolist())
