"""Offloaded models given to compressed-tensors, which offloads in its own way, changes weights and gives them back."""

import shutil
import sys
from pathlib import Path

import tiny
import torch
from accelerate import disk_offload
from compressed_tensors.offload import (
    align_module_device,
    from_accelerate,
    load_offloaded_model,
    to_accelerate,
    update_offload_parameter,
)
from transformers import AutoModelForCausalLM, LlamaForCausalLM

FOLDER = Path(sys.argv[1])
TOKENS = torch.arange(3, 15)[None]
SAVED = FOLDER / "base"


@torch.no_grad()
def logits(model):
    return model(TOKENS).logits[0, -1].tolist()


def change(model):
    """Double a weight in the first layer and set that of the head, in memory and on disk alike."""
    for name, factor in (("model.layers.0.mlp.up_proj", 2), ("lm_head", 0)):
        module = model.get_submodule(name)
        with align_module_device(module):
            value = module.weight.detach().clone() * factor + (1 - factor) * (factor == 0)
        update_offload_parameter(module, "weight", value)


def through(name, model):
    """Return what it computes: as it comes, handed over, changed, handed back, and saved and loaded again."""
    numbers = {"loaded": logits(model)}
    from_accelerate(model)
    numbers["taken"] = logits(model)
    change(model)
    numbers["changed"] = logits(model)
    to_accelerate(model)
    numbers["returned"] = logits(model)
    model.save_pretrained(FOLDER / f"{name} saved")
    numbers["saved"] = logits(LlamaForCausalLM.from_pretrained(FOLDER / f"{name} saved"))
    return {f"{name}, {what}": values for what, values in numbers.items()}


def loaded_in_parts(name, **settings):
    folder = FOLDER / name
    return LlamaForCausalLM.from_pretrained(
        SAVED, offload_folder=folder, device_map="auto", **settings
    ).eval()


def loaded_by_it(name):
    """Part in memory and part on disk, in its own words."""
    with load_offloaded_model(extra_cpu_mem=0):
        model = AutoModelForCausalLM.from_pretrained(
            SAVED, device_map="auto_offload", max_memory={"cpu": 40_000}, offload_folder=FOLDER / name
        )
    return model.eval()


tiny.make_model(num_hidden_layers=4).save_pretrained(SAVED)
found = through("disk in part", loaded_in_parts("disk in part", max_memory={"cpu": 60_000}))
found |= through("all on disk", loaded_in_parts("all on disk", max_memory={}))
found |= through("in its words", loaded_by_it("in its words"))
whole = tiny.make_model(num_hidden_layers=4).eval()
found |= through("disk_offload", disk_offload(whole, FOLDER / "disk", torch.device("cpu")))
shutil.rmtree(SAVED)
tiny.report(found)
