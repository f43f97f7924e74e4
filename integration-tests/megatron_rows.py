"""What the processes of `test_megatron.py` do."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from unittest.mock import patch

import torch
from torch.utils.data import DataLoader

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # for live processes
from cuda_on_cpu import cpu_for_cuda  # noqa: E402
from megatron_training import batches, gpt2, load_gpt2, train_megatron, train_plain  # noqa: E402

from accel import Accelerator  # noqa: E402
from accel.utils import MegatronLMDummyScheduler, MegatronLMPlugin  # noqa: E402

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


def plain(make_optimizer=None, limit=1.0):
    """Return the losses of plain PyTorch."""
    model = source()
    return train_plain(model, rows(), NUM_ROWS, (make_optimizer or adamw)(model.parameters()), limit)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)


def sgd(parameters):
    """Return an optimizer whose steps are as long as the gradients, unlike those of AdamW."""
    return torch.optim.SGD(parameters, lr=1.0)


def start(num_micro_batches=2, precision="no", make_optimizer=adamw, **settings):
    """Return an accelerator with the prepared model, optimizer, scheduler and loader."""
    plugin = MegatronLMPlugin(
        num_micro_batches=num_micro_batches, other_megatron_args=dict(EXACT), **settings
    )
    accelerator = Accelerator(cpu=True, mixed_precision=precision, megatron_lm_plugin=plugin)
    model = source()
    optimizer = make_optimizer(model.parameters())
    size = NUM_ROWS // num_micro_batches // plugin.num_data_ranks
    engine, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows(), batch_size=size))
    load_gpt2(accelerator, engine, model)
    return accelerator, engine, optimizer, loader


def warnings_of_prepare(device):
    """Return what is warned of when a model on this device is prepared."""
    accelerator = Accelerator(
        cpu=True, megatron_lm_plugin=MegatronLMPlugin(num_micro_batches=2, other_megatron_args=dict(EXACT))
    )
    with torch.device(device):
        model = source()
    optimizer = adamw(model.parameters())
    with cpu_for_cuda(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator.prepare(model, optimizer, DataLoader(rows(), batch_size=4))
    return [str(one.message) for one in caught]


def trained(settings, save_to=None, load_from=None):
    """Return the losses of a run, after loading and before saving."""
    with cpu_for_cuda():
        accelerator, engine, optimizer, loader = start(**settings)
        if load_from is not None:
            accelerator.load_state(load_from)
        losses = train_megatron(accelerator, engine, optimizer, loader)
        if save_to is not None:
            accelerator.save_state(save_to)
        return losses, engine.grad_norm, accelerator.state.megatron_lm_plugin.global_batch_size


def clipped(settings, limit):
    """Return the losses of steps whose gradients were clipped."""
    with cpu_for_cuda():
        return train_megatron(*start(make_optimizer=sgd, **settings), limit)


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


def shapes(name, settings):
    """Return the shapes of this rank's part of a model, prepared to compute outputs only."""
    with cpu_for_cuda() if name == "glm4_moe" else patch.dict("os.environ"):  # its router names the device
        return _shapes(small_model(name), settings)


def _shapes(model, settings):
    accelerator = Accelerator(cpu=True, megatron_lm_plugin=MegatronLMPlugin(**settings))
    part = accelerator.unwrap_model(accelerator.prepare_model(model, evaluation_mode=True))
    return {name: tuple(parameter.shape) for name, parameter in part.named_parameters()}


def dealt(settings):
    """Return the first tokens of the rows that this rank reads."""
    plugin = MegatronLMPlugin(**settings)
    accelerator = Accelerator(cpu=True, megatron_lm_plugin=plugin)
    loader = accelerator.prepare(
        DataLoader([{"input_ids": torch.tensor([n])} for n in range(16)], batch_size=2)
    )
    return [batch["input_ids"].flatten().tolist() for batch in loader], plugin.global_batch_size


def scheduled():
    """Return the learning rates of a schedule."""
    with cpu_for_cuda():
        plugin = MegatronLMPlugin(lr_decay_style="linear", other_megatron_args=dict(EXACT))
        accelerator = Accelerator(cpu=True, megatron_lm_plugin=plugin)
        model = source()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        accelerator.prepare_model(model, evaluation_mode=True)  # computes outputs until it gets an optimizer
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
    expected_beams = model.generate(
        tokens[:1], max_new_tokens=6, num_beams=3, do_sample=False, pad_token_id=0
    )
    return (made.tolist(), beams.tolist()), (expected.tolist(), expected_beams.tolist())


def small_model(name):
    """Return a small model of transformers, on the meta device: only its config counts."""
    import transformers as hf

    common = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4}
    with torch.device("meta"):
        if name == "llama":
            config = hf.LlamaConfig(**common, intermediate_size=64, num_key_value_heads=2)
            return hf.LlamaForCausalLM(config)
        if name == "bert":
            return hf.MegatronBertForMaskedLM(hf.MegatronBertConfig(**common, intermediate_size=64))
        if name == "t5":
            config = hf.T5Config(
                vocab_size=64,
                d_model=32,
                d_kv=8,
                d_ff=64,
                num_heads=4,
                num_layers=2,
                decoder_start_token_id=0,
            )
            return hf.T5ForConditionalGeneration(config)
        if name == "glm4_moe":
            config = hf.Glm4MoeConfig(
                **common, intermediate_size=64, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2,
                num_key_value_heads=2, head_dim=8, first_k_dense_replace=1, n_shared_experts=1,
            )  # fmt: skip
            return hf.Glm4MoeForCausalLM(config)
    return source()


def message_of(error, run):
    """Return the first sentence of the error that a function raises."""
    try:
        run()
    except error as raised:
        return str(raised)
    return ""


def refused():
    """Return what preparing for training and computing outputs say without CUDA."""
    with patch.dict("os.environ"):
        return _refused()


def _refused():
    accelerator = Accelerator(cpu=True, megatron_lm_plugin=MegatronLMPlugin())
    model = source()
    optimizer = torch.optim.AdamW(model.parameters())
    first = message_of(ImportError, lambda: accelerator.prepare(model, optimizer))
    engine = accelerator.prepare(model).eval()
    second = message_of(
        ImportError, lambda: engine(input_ids=torch.ones(1, 4).long(), labels=torch.ones(1, 4).long())
    )
    return [message.partition(" Run on")[0] for message in (first, second)]


def misused(what):
    """Return what a wrong use is answered."""
    with cpu_for_cuda():
        return message_of(Exception, lambda: misuse(what))


def misuse(what):
    """Use Megatron-LM in a way that it does not serve."""
    tokens = torch.arange(16)[None] % 64
    batch = {"input_ids": tokens, "labels": tokens}
    if what == "sequence parallelism":
        from accel_backends.strategies.megatron.model_parts import transformer_config
        from accel_state.mesh_layout import MeshLayout

        plugin = MegatronLMPlugin(tp_degree=2, sequence_parallelism=True)
        arguments = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
        return transformer_config(arguments, plugin, MeshLayout(tp=2), dtype=None, device=torch.device("cpu"))
    others = {"tensor_parallel": 2} if what == "unknown argument" else {}
    accelerator = Accelerator(
        cpu=True,
        megatron_lm_plugin=MegatronLMPlugin(other_megatron_args={**EXACT, **others}),
        dynamo_backend="inductor" if what == "compiled" else None,
    )
    model = source()
    optimizer = torch.optim.AdamW(model.parameters())
    if what == "another optimizer":
        optimizer = torch.optim.RMSprop(model.parameters())
    if what == "two models":
        return accelerator.prepare(model, optimizer, source())
    if what == "another scheduler":
        return accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1))
    engine, optimizer = accelerator.prepare(model, optimizer)
    if what == "get_state_dict":
        return accelerator.get_state_dict(engine)
    if what == "clip by value":
        return accelerator.clip_grad_value_(engine.parameters(), 1.0)
    if what == "padding before":
        batch["attention_mask"] = (torch.arange(16) > 2).long()[None]
    if what == "no labels":
        del batch["labels"]
    loss = engine(**batch).loss
    if what == "another loss":
        return accelerator.backward(loss * 2)
    return engine(**batch)


def run_blocks(texts):
    """Run blocks of a page, one after the other, with a model, an optimizer and a loader of the reader's.

    Returns:
        The loss of the last step.
    """
    with cpu_for_cuda(), patch.dict("os.environ", ACCELERATE_USE_CPU="true"):
        model = source()
        loader = DataLoader(rows(), batch_size=2)
        names = {"model": model, "optimizer": adamw(model.parameters()), "loader": loader}
        for text in texts:
            exec(text, names)
        return names["loss"].item()
