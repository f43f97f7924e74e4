"""A pretrained model of transformers comes into a sharded run from rank 0 only, or from its files."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import DTensor

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel_bigmodel import init_empty_weights

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.engine("long"), pytest.mark.filterwarnings("ignore")]


def config(**options):
    return transformers.LlamaConfig(
        hidden_size=32, intermediate_size=50, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=41, bos_token_id=1, eos_token_id=2, pad_token_id=0, **options,
    )  # fmt: skip


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def pretrained(tmp_path, request):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config(tie_word_embeddings=request.param))
    model.save_pretrained(tmp_path)
    return model, tmp_path


def whole(model, tokens):
    values = [*model.named_parameters(), *model.named_buffers()]
    tensors = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in values}
    with torch.no_grad():
        return tensors, model(tokens).logits


def from_rank_0(folder, tokens):
    with pytest.MonkeyPatch.context() as launched:
        # As `accel launch` leaves them; the plugin and transformers read them.
        launched.setenv("ACCELERATE_USE_FSDP", "true")
        launched.setenv("FSDP_VERSION", "2")
        launched.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
        accelerator = Accelerator(cpu=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        return whole(accelerator.prepare(model), tokens)


def empty_but_on_rank_0(folder, tokens):
    accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    if accelerator.is_main_process:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    else:
        with init_empty_weights(include_buffers=True):
            model = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.from_pretrained(folder)
            )
        model.eval()
    return whole(accelerator.prepare(model), tokens)


def from_files(folder, tokens):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, load_weights_from=folder)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    with init_empty_weights(include_buffers=False):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(folder)
        ).eval()
    assert all(parameter.is_meta for parameter in model.parameters())
    return whole(accelerator.prepare(model), tokens)


@pytest.mark.parametrize("load", [from_rank_0, empty_but_on_rank_0, from_files])
def test_weights_and_buffers_are_those_that_were_saved(world, pretrained, load):
    model, folder = pretrained
    tokens = torch.arange(3, 27).reshape(2, 12)
    tensors, logits = whole(model.eval(), tokens)
    for found, outputs in world(2).run(load, folder, tokens):
        assert list(found) == list(tensors)
        for name, value in tensors.items():
            assert torch.equal(found[name], value), name
        torch.testing.assert_close(outputs, logits, rtol=0, atol=0)
