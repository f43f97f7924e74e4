"""Models of transformers, tiny and built from code: mapped, loaded, offloaded, generating what the resident ones do."""

from __future__ import annotations

import copy

import pytest
import torch

from accel_bigmodel import (
    calculate_maximum_sizes,
    check_tied_parameters_in_config,
    cpu_offload,
    find_tied_parameters,
    get_state_dict_offloaded_model,
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    save_model,
)

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.engine("long"), pytest.mark.filterwarnings("ignore")]
TOKENS = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2():
    config = transformers.GPT2Config(n_embd=32, n_layer=3, n_head=2, n_positions=64, **TOKENS)
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        **TOKENS,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def t5():
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
        **{**TOKENS, "bos_token_id": None},
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


KINDS = [gpt2, llama, t5]


def resident(build):
    torch.manual_seed(0)
    return build().eval()


def skeleton(build):
    with init_empty_weights():
        return build().eval()


def written(model, **options):
    prompt = torch.tensor([[5, 7, 11, 13], [3, 4, 6, 8]])
    return model.generate(prompt, max_new_tokens=8, do_sample=False, **options)


@pytest.mark.parametrize("build", KINDS)
def test_a_skeleton_takes_no_memory_and_keeps_its_ties(build):
    model, wanted = skeleton(build), resident(build)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert find_tied_parameters(model) == find_tied_parameters(wanted)
    assert check_tied_parameters_in_config(model) == (build is not llama)
    assert calculate_maximum_sizes(model) == calculate_maximum_sizes(wanted)


@pytest.mark.parametrize("build", KINDS)
def test_half_in_memory_it_writes_what_the_resident_one_writes(tmp_path, build):
    wanted = resident(build)
    save_model(wanted, tmp_path, max_shard_size="40KB")
    total = sum(parameter.nbytes for parameter in wanted.parameters())
    model = skeleton(build)
    device_map = infer_auto_device_map(
        model, {"cpu": total * 2 // 3}, no_split_module_classes=list(model._no_split_modules)
    )
    assert {"cpu", "disk"} == set(device_map.values())
    load_checkpoint_and_dispatch(model, tmp_path, device_map=device_map)
    in_memory = {id(p): p.nbytes for p in model.parameters() if not p.is_meta}
    assert 0 < sum(in_memory.values()) <= total * 2 // 3
    assert torch.equal(written(model), written(wanted))
    assert torch.equal(written(model, num_beams=2), written(wanted, num_beams=2))
    state = get_state_dict_offloaded_model(model)
    assert all(torch.equal(state[name], value) for name, value in wanted.state_dict().items())


@pytest.mark.parametrize("build", KINDS)
def test_offloaded_in_full_it_writes_the_same_with_and_without_prefetching(build):
    wanted = resident(build)
    for prefetch in (True, False):
        model = cpu_offload(copy.deepcopy(wanted), "cpu", offload_buffers=True, prefetch=prefetch)
        assert all(parameter.is_meta for parameter in model.parameters())
        for options in ({}, {"use_cache": False}):
            assert torch.equal(written(model, **options), written(wanted, **options))
        batch = {"input_ids": torch.tensor([[5, 7, 11]]), "labels": torch.tensor([[3, 4, 6]])}
        with torch.no_grad():
            assert torch.equal(model(**batch).loss, wanted(**batch).loss)


@pytest.mark.parametrize("build", KINDS)
def test_its_own_checkpoints_are_loaded(tmp_path, build):
    wanted = resident(build)
    wanted.save_pretrained(tmp_path, max_shard_size="40KB")
    for place in ("disk", "cpu"):
        model = load_checkpoint_and_dispatch(skeleton(build), tmp_path, device_map={"": place})
        assert torch.equal(written(model), written(wanted))
