"""Megatron-LM must divide a model as its layout specifies, and train it as plain PyTorch does in one process."""

from __future__ import annotations

import math
import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch
from cuda_on_cpu import cpu_for_cuda
from documented import DOCS, blocks
from torch import nn
from torch.utils.data import DataLoader

from accel import Accelerator
from accel.utils import MegatronLMDummyScheduler, MegatronLMPlugin
from accel_state.enums import DistributedType
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.engine("megatron")

EXACT = {"make_vocab_size_divisible_by": 1}
NUM_ROWS = 8
"""Rows of a step on all ranks."""
LIMIT_S = 300.0
"""The first step compiles kernels."""


def source() -> nn.Module:
    """Return the GPT-2 of transformers that all are compared with, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 16, "vocab_size": 64}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=None, eos_token_id=None))


def rows() -> list[dict[str, torch.Tensor]]:
    """Return the rows of six steps; they count up, each from a number and by its own step."""
    found = [(number * 7 + torch.arange(16) * (1 + number % 3)) % 64 for number in range(6 * NUM_ROWS)]
    return [{"input_ids": row, "labels": row} for row in found]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer whose steps are as long as the gradients, unlike those of AdamW."""
    return torch.optim.SGD(model.parameters(), lr=1.0)


def plain(make_optimizer: Any = adamw, limit: float = 1.0) -> list[float]:
    """Return the losses of plain PyTorch."""
    model, losses = source().train(), []
    optimizer = make_optimizer(model)
    for batch in DataLoader(rows(), batch_size=NUM_ROWS):
        loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def copy_weights(accelerator: Any, engine: Any, model: Any) -> None:
    """Give a prepared model the weights of the GPT-2 that it was prepared from, in megatron-core's own layers."""
    own = accelerator.unwrap_model(engine)
    layout = accelerator.state.layout
    for part in own if isinstance(own, nn.ModuleList) else [own]:
        values = {
            "decoder.final_layernorm.weight": model.transformer.ln_f.weight,
            "decoder.final_layernorm.bias": model.transformer.ln_f.bias,
            "embedding.word_embeddings.weight": model.transformer.wte.weight,
            "embedding.position_embeddings.weight": model.transformer.wpe.weight,
            "output_layer.weight": model.transformer.wte.weight,
        }
        for place, layer in enumerate(part.decoder.layers):
            of_layer = layer_weights(model.transformer.h[layer.layer_number - 1])
            values |= {f"decoder.layers.{place}.{name}": value for name, value in of_layer.items()}
        for name, parameter in part.named_parameters():
            value = values[name]
            for dim, size in enumerate(parameter.shape):
                if size != value.shape[dim]:
                    value = value.chunk(layout.tp, dim)[layout.index(accelerator.process_index, "tp")]
            parameter.copy_(value)
    if engine.optimizer is not None:
        engine.optimizer.reload_model_params()


def layer_weights(block: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a layer by megatron-core's names; heads have their query, key and value side by side."""
    found = {}
    for theirs, layer in {
        "self_attention.linear_qkv": block.attn.c_attn,
        "self_attention.linear_proj": block.attn.c_proj,
        "mlp.linear_fc1": block.mlp.c_fc,
        "mlp.linear_fc2": block.mlp.c_proj,
    }.items():
        found |= {f"{theirs}.weight": layer.weight.T, f"{theirs}.bias": layer.bias}
    for theirs, norm in {"input_layernorm": block.ln_1, "pre_mlp_layernorm": block.ln_2}.items():
        found |= {f"{theirs}.weight": norm.weight, f"{theirs}.bias": norm.bias}
    for name in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        heads = found[name].reshape(3, block.attn.num_heads, -1, *found[name].shape[1:])
        found[name] = heads.transpose(0, 1).flatten(0, 2)
    return found


def start(arguments: dict[str, Any] | None = None, **settings: Any) -> Accelerator:
    plugin = MegatronLMPlugin(other_megatron_args={**EXACT, **(arguments or {})}, **settings)
    return Accelerator(cpu=True, megatron_lm_plugin=plugin)


def train(
    settings: dict[str, Any],
    *,
    save_to: str | None = None,
    load_from: str | None = None,
    make_optimizer: Any = adamw,
    limit: float | None = None,
) -> tuple[list[float], float, int]:
    """Return the losses of a run, after loading and before saving, its last norm, and the rows of a step."""
    with cpu_for_cuda():
        accelerator, model, losses = start(**{"num_micro_batches": 2, **settings}), source(), []
        plugin = accelerator.state.megatron_lm_plugin
        loader = DataLoader(rows(), batch_size=NUM_ROWS // plugin.num_micro_batches // plugin.num_data_ranks)
        engine, optimizer, loader = accelerator.prepare(model, make_optimizer(model), loader)
        copy_weights(accelerator, engine, model)
        if load_from is not None:
            accelerator.load_state(load_from)
        engine.train()
        for batch in loader:
            loss = engine(**batch).loss
            accelerator.backward(loss)
            if limit is not None:
                accelerator.clip_grad_norm_(engine.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if save_to is not None:
            accelerator.save_state(save_to)
        return losses, engine.grad_norm, plugin.global_batch_size


@pytest.mark.parametrize(
    ("settings", "num_micro_batches"),
    [
        ({}, 1),
        ({"tp_degree": 2}, 2),
        ({"pp_degree": 2}, 4),
        ({"use_distributed_optimizer": True}, 2),
        ({"pp_degree": 2, "num_layers_per_virtual_pipeline_stage": 1}, 4),
        ({"calculate_per_token_loss": True}, 2),
    ],
)
def test_two_ranks_train_as_one_process_of_plain_pytorch(world, settings, num_micro_batches):
    expected = plain()
    for losses, norm, num_rows in world(2).run(
        train, {**settings, "num_micro_batches": num_micro_batches}, timeout_s=LIMIT_S
    ):
        assert losses == pytest.approx(expected, abs=2e-4)
        assert norm > 0
        assert num_rows == NUM_ROWS


@pytest.mark.parametrize(("settings", "limit"), [({}, 0.05), ({"tp_degree": 2}, 0.05), ({}, math.inf)])
def test_gradients_are_clipped_by_the_norm_of_all(world, settings, limit):
    """With SGD, whose steps a wrong norm makes longer or shorter; the plugin alone would clip at 1."""
    expected = plain(sgd, limit)
    assert expected[-1] != pytest.approx(plain(sgd, 1.0)[-1], abs=1e-3)
    for losses, *_ in world(2).run(train, settings, make_optimizer=sgd, limit=limit, timeout_s=LIMIT_S):
        assert losses == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("is_distributed", [False, True])
def test_a_checkpoint_continues_in_another_layout(world, tmp_path, is_distributed):
    """The optimizer's state goes along: without it the second epoch has other losses."""
    kept, settings = str(tmp_path / "kept"), {"use_distributed_optimizer": is_distributed}
    first, _ = world(2).run(train, {**settings, "pp_degree": 2}, save_to=kept, timeout_s=LIMIT_S)
    expected, _ = world(2).run(train, {**settings, "pp_degree": 2}, load_from=kept, timeout_s=LIMIT_S)
    for later in ({"tp_degree": 2}, {}):
        for losses, *_ in world(2).run(train, {**settings, **later}, load_from=kept, timeout_s=LIMIT_S):
            assert losses == pytest.approx(expected[0], abs=2e-4)
            assert losses[0] < first[0][0]


def test_states_of_another_kind_of_optimizer_are_refused(world, tmp_path):
    world(1).run(train, {}, save_to=str(tmp_path / "kept"), timeout_s=LIMIT_S)
    with pytest.raises(CheckpointError, match="saved without `use_distributed_optimizer`"):
        world(1).run(
            train, {"use_distributed_optimizer": True}, load_from=str(tmp_path / "kept"), timeout_s=LIMIT_S
        )


def compare_groups(settings: dict[str, Any]) -> None:
    import torch.distributed as dist
    from megatron.core import parallel_state

    accelerator = start(**settings)
    layout, rank = accelerator.state.layout, accelerator.process_index
    for axes, group in {
        ("tp",): parallel_state.get_tensor_model_parallel_group(),
        ("pp",): parallel_state.get_pipeline_model_parallel_group(),
        ("dp_replicate", "dp_shard"): parallel_state.get_data_parallel_group(),
    }.items():
        assert tuple(dist.get_process_group_ranks(group)) == layout.group_of(rank, *axes)
    assert accelerator.distributed_type == DistributedType.MEGATRON_LM


@pytest.mark.parametrize("settings", [{"tp_degree": 2, "pp_degree": 2}, {"tp_degree": 2}, {"pp_degree": 2}])
def test_the_groups_of_megatron_are_those_of_the_layout(world, settings):
    world(4).run(compare_groups, settings)


def schedule() -> list[float]:
    with cpu_for_cuda():
        accelerator, model = start(lr_decay_style="linear"), source()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        accelerator.prepare_model(model, evaluation_mode=True)  # computes outputs until it gets an optimizer
        dummy = MegatronLMDummyScheduler(optimizer, total_num_steps=4, warmup_num_steps=2)
        engine, optimizer, scheduler = accelerator.prepare(model, optimizer, dummy)
        [batch], rates = DataLoader(rows()[:2], batch_size=2), []
        for _ in range(4):
            accelerator.backward(engine(**batch).loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            rates.append(scheduler.get_last_lr()[0])
        return rates


def test_the_learning_rate_follows_the_schedule(world):
    assert world(1).run(schedule)[0] == pytest.approx([5e-4, 1e-3, 5e-4, 0])


def generate(settings: dict[str, Any]) -> None:
    with cpu_for_cuda():
        accelerator, model = start(**settings), source().eval()
        engine = accelerator.prepare(model)
        copy_weights(accelerator, engine, model)
        tokens = torch.tensor([[1, 4, 7, 10], [3, 5, 7, 9]])
        greedy = engine.megatron_generate(tokens, max_new_tokens=6)
        beams = engine.megatron_generate(tokens[:1], max_new_tokens=6, num_beams=3)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(greedy, model.generate(tokens, **options))
    assert torch.equal(beams, model.generate(tokens[:1], num_beams=3, **options))


@pytest.mark.parametrize("settings", [{"tp_degree": 2}, {"pp_degree": 2}])
def test_generated_tokens_are_those_of_transformers(world, settings):
    world(2).run(generate, settings)


def read(settings: dict[str, Any]) -> tuple[list[list[int]], int]:
    """Return the tokens of the rows that this rank reads, and the rows of a step."""
    accelerator = start(**settings)
    loader = DataLoader([{"input_ids": torch.tensor([n])} for n in range(16)], batch_size=2)
    found = [batch["input_ids"].flatten().tolist() for batch in accelerator.prepare(loader)]
    return found, accelerator.state.megatron_lm_plugin.global_batch_size


@pytest.mark.parametrize(("num_micro_batches", "sizes"), [(1, [2, 2, 2, 2]), (2, [4, 4])])
def test_tp_ranks_read_the_same_rows(world, num_micro_batches, sizes):
    settings = {"tp_degree": 2, "num_micro_batches": num_micro_batches}
    (first, num_rows), second, third, _ = world(4).run(read, settings)
    assert second == (first, num_rows)
    assert [len(rows) for rows in first] == sizes
    assert sorted(number for rows in first + third[0] for number in rows) == list(range(16))
    assert num_rows == 4 * num_micro_batches


def shapes(name: str, settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of this rank's part of a small model, of which only the config counts."""
    import transformers as hf

    common = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4}
    experts = {
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
    }
    t5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 2}
    kinds = {
        "llama": ("Llama", "ForCausalLM", {**common, "intermediate_size": 64, "num_key_value_heads": 2}),
        "bert": ("MegatronBert", "ForMaskedLM", {**common, "intermediate_size": 64}),
        "t5": ("T5", "ForConditionalGeneration", {**t5, "decoder_start_token_id": 0}),
        "glm4_moe": (
            "Glm4Moe",
            "ForCausalLM",
            {
                **common,
                **experts,
                "intermediate_size": 64,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "first_k_dense_replace": 1,
            },
        ),
    }
    # A router of experts names the device.
    with cpu_for_cuda() if name == "glm4_moe" else patch.dict("os.environ"):
        model = source()
        if name in kinds:
            kind, head, sizes = kinds[name]
            with torch.device("meta"):
                model = getattr(hf, kind + head)(getattr(hf, f"{kind}Config")(**sizes))
        accelerator = Accelerator(cpu=True, megatron_lm_plugin=MegatronLMPlugin(**settings))
        part = accelerator.unwrap_model(accelerator.prepare_model(model, evaluation_mode=True))
        return {name: tuple(parameter.shape) for name, parameter in part.named_parameters()}


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("gpt2", {"tp_degree": 2}, {"decoder.layers.0.self_attention.linear_qkv.weight": (48, 32)}),
        ("llama", {"pp_degree": 2}, {"decoder.layers.1.mlp.linear_fc1.weight": (128, 32)}),
        ("llama", {"tp_degree": 2}, {"decoder.layers.3.mlp.linear_fc1.weight": (64, 32)}),
        ("bert", {"tp_degree": 2}, {"encoder.layers.1.mlp.linear_fc2.weight": (32, 32)}),
        ("t5", {"tp_degree": 2}, {"decoder.layers.1.cross_attention.linear_kv.weight": (32, 32)}),
        ("glm4_moe", {"expert_model_parallel_size": 2}, {"decoder.layers.1.mlp.router.weight": (4, 32)}),
    ],
)
def test_each_rank_has_its_part_of_the_model(world, name, settings, expected):
    for found in world(2).run(shapes, name, settings):
        assert {key: found[key] for key in expected} == expected


def train_without_cuda() -> None:
    with patch.dict("os.environ"):
        accelerator, model = start(), source()
        reason = "Megatron-LM computes on CUDA devices only, and torch finds none here."
        with pytest.raises(ImportError, match=reason):
            accelerator.prepare(model, adamw(model))
        engine = accelerator.prepare(model).eval()
        with pytest.raises(ImportError, match=reason):
            engine(input_ids=torch.ones(1, 4).long(), labels=torch.ones(1, 4).long())


def test_without_cuda_nothing_is_trained(world):
    world(1).run(train_without_cuda)


def misuse(what: str, message: str) -> None:
    with cpu_for_cuda(), pytest.raises(Exception, match=message):
        use_wrongly(what)


def use_wrongly(what: str) -> Any:
    """Use Megatron-LM in a way that it does not serve."""
    tokens = torch.arange(16)[None] % 64
    batch = {"input_ids": tokens, "labels": tokens}
    if what == "sequence parallelism":
        from accel_backends.strategies.megatron.model_parts import transformer_config
        from accel_state.mesh_layout import MeshLayout

        plugin = MegatronLMPlugin(tp_degree=2, sequence_parallelism=True)
        arguments = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
        return transformer_config(arguments, plugin, MeshLayout(tp=2), dtype=None, device=torch.device("cpu"))
    if what == "compiled":
        plugin = MegatronLMPlugin(other_megatron_args=EXACT)
        accelerator = Accelerator(cpu=True, megatron_lm_plugin=plugin, dynamo_backend="inductor")
    else:
        accelerator = start({"tensor_parallel": 2} if what == "unknown argument" else None)
    model = source()
    optimizer = torch.optim.RMSprop(model.parameters()) if what == "another optimizer" else adamw(model)
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


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("two models", "one model with one optimizer"),
        ("another scheduler", "cannot move the learning rate"),
        ("another optimizer", "no optimizer like RMSprop"),
        ("unknown argument", "no argument `tensor_parallel`"),
        ("another loss", "got another loss"),
        ("no step", "second batch for training"),
        ("padding before", "hides tokens before others"),
        ("no labels", "needs `labels`"),
        ("get_state_dict", "megatron-core's own"),
        ("sequence parallelism", "needs layers of Transformer Engine"),
        ("compiled", "`dynamo_backend`"),
        ("clip by value", "clip_grad_value_"),
    ],
)
def test_what_megatron_cannot_do_is_refused(world, what, message):
    world(1).run(misuse, what, message)


def run_blocks(texts: list[str]) -> float:
    """Run blocks of a page, one after the other, with the reader's objects; return the loss of the last step."""
    with cpu_for_cuda(), patch.dict("os.environ", ACCELERATE_USE_CPU="true"):
        model = source()
        names = {"model": model, "optimizer": adamw(model), "loader": DataLoader(rows(), batch_size=2)}
        for text in texts:
            exec(text, names)
        return names["loss"].item()


def test_the_code_of_the_guide_runs(world):
    texts = [block.text for block in blocks(DOCS / "scale" / "megatron.md", "python")]
    assert len(texts) == 2
    assert all(map(math.isfinite, world(4).run(run_blocks, texts)))


def warnings_of_prepare(device: str) -> list[str]:
    """Return what is warned of when a model on this device is prepared."""
    accelerator = start(num_micro_batches=2)
    with torch.device(device):
        model = source()
    with cpu_for_cuda(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator.prepare(model, adamw(model), DataLoader(rows(), batch_size=4))
    return [str(one.message) for one in caught]


def test_values_that_a_model_has_are_not_ignored_in_silence(world):
    [warned] = world(1).run(warnings_of_prepare, "cpu")
    told = "random values, so those of this `GPT2LMHeadModel` are unused. Load a checkpoint of Megatron-LM by"
    assert [told in one for one in warned].count(True) == 1
    [warned] = world(1).run(warnings_of_prepare, "meta")
    assert not any("are unused" in one for one in warned)
