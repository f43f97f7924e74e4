"""Memory of a step without values, next to what was measured on one H200 (torch 2.11, allocated memory)."""

import pytest
import torch

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel.planning.step import measured, train_once
from accel.planning.without_values import no_values, rank_alone, without_memory
from accel.utils import TorchDynamoPlugin
from accel_state.mesh_layout import MeshLayout

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.engine("long"), pytest.mark.filterwarnings("ignore")]

EIGHT_B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
ONE_B = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 18, "num_attention_heads": 16,
    "num_key_value_heads": 8, "vocab_size": 32768,
}  # fmt: skip


class Partitioned(TorchDynamoPlugin):
    """Compiles as inductor does up to its kernels: these decide no more what is kept for the backward pass."""

    def to_kwargs(self):
        return {**super().to_kwargs(), "backend": "aot_eager_decomp_partition"}


def peak(shape, dtype, *, num_unchecked=0, own_checkpoints=False, **settings):
    """Return the GB of a step of a Llama on 4 × 4,096 tokens on one rank."""
    with rank_alone(0, 1):
        accelerator = Accelerator(cpu=True, **settings)
        config = transformers.LlamaConfig(
            **shape, max_position_embeddings=4096, use_cache=False, tie_word_embeddings=False
        )
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(config).to(dtype).train()
        with no_values():
            without_memory(model)
            if own_checkpoints:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
                for layer in model.model.layers[32 - num_unchecked :]:
                    layer.gradient_checkpointing = False
            model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), fused=True))
            tokens = torch.zeros(4, 4096, dtype=torch.long)
            memory, _ = measured(
                lambda: train_once(accelerator, model, optimizer, tokens, MeshLayout()), model, optimizer
            )
    return sum(memory.values()) / 1e9


def compiled():
    return Partitioned(backend="inductor", use_regional_compilation=True, dynamic=False)


def test_an_8b_model_in_bf16_with_full_checkpointing():
    found = peak(EIGHT_B, torch.bfloat16, own_checkpoints=True, dynamo_plugin=compiled())
    assert found == pytest.approx(78.03, rel=0.05)


def test_an_8b_model_with_twenty_layers_that_are_not_checkpointed():
    found = peak(
        EIGHT_B, torch.bfloat16, own_checkpoints=True, num_unchecked=20, dynamo_plugin=compiled()
    )
    assert found == pytest.approx(121.02, rel=0.05)


def test_a_1b_model_in_shards_of_one_rank():
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        activation_checkpointing=True,
    )
    found = peak(ONE_B, torch.float32, mixed_precision="bf16", fsdp_plugin=plugin)
    assert found == pytest.approx(23.32, rel=0.05)
