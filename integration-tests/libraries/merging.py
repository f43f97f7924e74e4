"""Adapters of PEFT, merged into base models offloaded to memory, to a folder, and to the files of a checkpoint."""

import sys
from pathlib import Path

import tiny
import torch
from accelerate import cpu_offload, disk_offload
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaForCausalLM

from accel_bigmodel.offload import weight

FOLDER = Path(sys.argv[1])
TOKENS = torch.arange(3, 15)[None]
MAP = {
    "model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "cpu", "lm_head": "cpu",
    "model.layers.0": "cpu", "model.layers.1": "disk",
}  # fmt: skip


@torch.no_grad()
def logits(model):
    return model(TOKENS).logits


def difference(model, wanted):
    return (logits(model) - wanted).abs().max().item()


def with_adapter(base):
    torch.manual_seed(1)
    config = LoraConfig(
        target_modules=["q_proj", "up_proj"], r=2, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    return get_peft_model(base, config).eval()


def in_memory(folder):
    return cpu_offload(with_adapter(tiny.make_model()), torch.device("cpu"))


def in_folder(folder):
    return disk_offload(with_adapter(tiny.make_model()), folder, torch.device("cpu"))


def in_checkpoint(folder):
    base = LlamaForCausalLM.from_pretrained(FOLDER / "base", device_map=MAP, offload_folder=folder)
    device_map = {f"base_model.model.{name}": device for name, device in MAP.items()}
    loaded = PeftModel.from_pretrained(base, FOLDER / "adapter", device_map=device_map, offload_folder=folder)
    return loaded.eval()


tiny.make_model().save_pretrained(FOLDER / "base")
base = logits(tiny.make_model().eval())
adapted = with_adapter(tiny.make_model())
adapted.save_pretrained(FOLDER / "adapter")
wanted = logits(adapted)
found = {"adapter": [(wanted - base).abs().max().item()]}
for memory in ("same memory", "second memory"):
    if memory == "second memory":  # what every accelerator is
        weight.OffloadedWeight.is_copied = True
    for way in (in_memory, in_folder, in_checkpoint):
        folder = FOLDER / memory / way.__name__
        folder.mkdir(parents=True)
        model = way(folder)
        numbers = found[f"{memory}, {way.__name__}"] = [difference(model, wanted)]
        model.merge_adapter()
        numbers.append(difference(model, wanted))
        model.unmerge_adapter()
        with model.disable_adapter():
            numbers.append(difference(model, base))
        merged = model.merge_and_unload()
        numbers.append(difference(merged, wanted))
        merged.save_pretrained(folder / "merged")
        numbers.append(difference(LlamaForCausalLM.from_pretrained(folder / "merged").eval(), wanted))
tiny.report(found)
