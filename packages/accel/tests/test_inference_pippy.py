"""The steps of Accelerate's pippy examples, as its guide documents them, on two to four processes."""

import pytest
import torch

from accel import PartialState
from accel.inference import prepare_pippy  # a script has `accelerate.inference`

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.usefixtures("fresh_state"), pytest.mark.filterwarnings("ignore")]
TOKENS = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def bert():
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64, **TOKENS
    )
    return transformers.BertForMaskedLM(config)


def gpt2():
    config = transformers.GPT2Config(n_embd=32, n_layer=4, n_head=2, n_positions=64, **TOKENS)
    return transformers.GPT2ForSequenceClassification(config)


def t5():
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4, decoder_start_token_id=0,
        **{**TOKENS, "bos_token_id": None},
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def llama():
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, **TOKENS
    )
    return transformers.LlamaForCausalLM(config)


MODELS = {"bert": bert, "gpt2": gpt2, "t5": t5, "llama": llama}


def made(kind):
    torch.manual_seed(42)
    model = MODELS[kind]()
    model.eval()
    return model


def inputs(kind, *, rows, length):
    """Return what the example gives the model: one tensor, the tensors of both stacks, or padded prompts."""
    tokens = torch.randint(3, 40, (rows, length), generator=torch.Generator().manual_seed(rows))
    if kind in ("bert", "gpt2"):
        return (tokens,), {}
    if kind == "t5":
        return (), {"input_ids": tokens, "decoder_input_ids": tokens}
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    return (), {"input_ids": tokens.masked_fill(mask == 0, 0), "attention_mask": mask}


def example(kind, **options):
    """Return the first output of batches of several sizes, on a process that has it, and where stages begin."""
    args, kwargs = inputs(kind, rows=2, length=16)
    model = prepare_pippy(
        made(kind), split_points="auto", example_args=args, example_kwargs=kwargs or None, **options
    )
    outputs = []
    for rows, length in ((2, 16), (2, 16), (5, 9), (1, 7)):  # the guide: "some more arguments"
        args, kwargs = inputs(kind, rows=rows, length=length)
        with torch.no_grad():
            output = model(*args, **kwargs)
        has_output = PartialState().is_last_process or options.get("gather_output", False)
        assert (output is not None) == has_output
        outputs.append(torch.stack(tuple(output[0])) if has_output else None)
    return outputs, model.hf_split_points


def expected_outputs(kind):
    model, outputs = made(kind), []
    for rows, length in ((2, 16), (2, 16), (5, 9), (1, 7)):
        args, kwargs = inputs(kind, rows=rows, length=length)
        with torch.no_grad():
            outputs.append(model(*args, **kwargs)[0])
    return outputs


OPTIONS = [{}, {"gather_output": True}, {"num_chunks": 1}, {"num_chunks": 3, "gather_output": True}]


def all_examples():
    return {
        (kind, number): example(kind, **options) for kind in MODELS for number, options in enumerate(OPTIONS)
    }


@pytest.mark.parametrize("num_processes", [2, 3, 4])
def test_the_examples_return_the_outputs_of_one_process(world, num_processes):
    expected = {kind: expected_outputs(kind) for kind in MODELS}
    for rank, examples in enumerate(world(num_processes).run(all_examples)):
        for (kind, number), (outputs, split_points) in examples.items():
            assert len(split_points) == num_processes - 1
            for output, whole in zip(outputs, expected[kind], strict=True):
                if rank < num_processes - 1 and not OPTIONS[number].get("gather_output", False):
                    assert output is None
                    continue
                torch.testing.assert_close(output, whole, rtol=1e-5, atol=1e-6, msg=(kind, number))
