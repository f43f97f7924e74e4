"""Tiny models, a tokenizer and texts for libraries, all made here, and how a script reports its losses."""

import json
import os

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = "a the cat dog saw ran sat on mat hat and then it was good bad yes no what why who"
WORDS = TEXT.split()


def make_tokenizer():
    names = ["<pad>", "<s>", "</s>", "<unk>", *WORDS]
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(names)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    made.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return made


def make_model(**settings):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            **{
                "vocab_size": 4 + len(WORDS), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1,
                "eos_token_id": 2, **settings,
            }
        )
    )  # fmt: skip


def save_model(folder):
    """Write a model, a copy for each process, and return where it is."""
    path = f"{folder}/model-{rank()}"
    make_model().save_pretrained(path)
    return path


def make_texts(number=32):
    generator = torch.Generator().manual_seed(0)
    return [
        " ".join(WORDS[int(index)] for index in torch.randint(len(WORDS), (6,), generator=generator))
        for _ in range(number)
    ]


def make_unet():
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8,), norm_num_groups=4,
        down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
    )  # fmt: skip


def rank():
    return os.environ.get("RANK", "0")


def world_size():
    return int(os.environ.get("WORLD_SIZE", "1"))


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def report(found):
    """Print losses by name, on one process."""
    if rank() == "0":
        print("FOUND", json.dumps(found))
