"""The Trainer of transformers with models that it shards, or that `parallelism_config` shards: as in one process.

``trainer_parallel.py FOLDER NAME …`` runs the named rows of `ROWS` and prints a line of JSON for each.
"""

import json
import shutil
import sys
import traceback

import tiny
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    DataCollatorForTokenClassification,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig

folder, *chosen = sys.argv[1:]
rows = [
    {"input_ids": row, "labels": row, "attention_mask": [1] * len(row)}
    for row in torch.randint(4, 20, (40, 8), generator=torch.Generator().manual_seed(1)).tolist()
]
FSDP = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
ACCUMULATED = {"gradient_accumulation_steps": 2}


def loaded(**axes):
    """Return sizes of a `distributed_config`, by which transformers shards the model that it loads."""
    return {"distributed": axes}


ROWS = {
    # what the Trainer gets next to the plain settings
    "plain": {},
    "accumulated": ACCUMULATED,
    "bf16": {"bf16": True},
    "adapters": {"adapters": True},
    "tp auto": {"tp_plan": "auto"},
    "fsdp, accumulated": {**loaded(fsdp_size=2), **ACCUMULATED},
    "fsdp, adapters": {**loaded(fsdp_size=2), "adapters": True},
    "cp": {"parallelism": {"cp_size": 2}, **FSDP},
}


def num_replicas(row):
    axes = row.get("distributed", row.get("parallelism"))
    if axes is not None:
        replicas = 1
        for axis in ("fsdp_size", "dp_replicate_size", "dp_shard_size"):
            replicas *= axes.get(axis, 1)
        return replicas
    return 1 if "tp_plan" in row else tiny.world_size()


def train(name):
    row = dict(ROWS[name])
    path = f"{folder}/run"
    if tiny.rank() == "0":
        shutil.rmtree(path, ignore_errors=True)
    replicas = num_replicas(row)
    distributed, plan, adapted, parallelism = (
        row.pop(key, None) for key in ("distributed", "tp_plan", "adapters", "parallelism")
    )

    settings = dict(row)
    if parallelism:
        from accelerate.utils import ParallelismConfig

        settings["parallelism_config"] = ParallelismConfig(**parallelism)
    arguments = TrainingArguments(
        path, **{
            "use_cpu": True, "ddp_backend": "gloo", "per_device_train_batch_size": 4 // replicas,
            "per_device_eval_batch_size": 4 // replicas, "max_steps": 4, "logging_steps": 1, "report_to": [],
            "save_strategy": "no", "learning_rate": 1e-2,
            "disable_tqdm": True, "max_grad_norm": 0.5, **settings,
        }
    )  # fmt: skip
    if distributed:
        model = LlamaForCausalLM.from_pretrained(saved, distributed_config=DistributedConfig(**distributed))
    elif plan:
        model = LlamaForCausalLM.from_pretrained(saved, tp_plan=plan)
    else:
        model = LlamaForCausalLM.from_pretrained(saved)
    if adapted:
        torch.manual_seed(1)
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    trainer = Trainer(
        model, arguments, train_dataset=rows[:33], eval_dataset=rows[32:],
        data_collator=DataCollatorForTokenClassification(tiny.make_tokenizer()),
    )  # fmt: skip
    trainer.train()
    trainer.evaluate()
    trainer.save_model(f"{path}/saved")
    trainer.accelerator.wait_for_everyone()
    weights = []
    if tiny.rank() == "0" and not adapted:
        state = LlamaForCausalLM.from_pretrained(f"{path}/saved").state_dict()
        weights = [float(value.double().abs().sum()) for value in state.values()]
    keys = ("loss", "grad_norm", "eval_loss")
    history = [[entry[key] for key in keys if key in entry] for entry in trainer.state.log_history]
    trainer.accelerator.wait_for_everyone()
    return {"history": history, "weights": weights}


if __name__ == "__main__":
    saved = tiny.save_model(folder)
    for name in chosen:
        try:
            found = train(name)
        except Exception as error:  # noqa: BLE001 - reported as a finding
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"[:600]}
        if tiny.rank() == "0":
            print("FOUND", json.dumps({name: found}), flush=True)
        if "error" in found:
            sys.exit(1)  # the ranks are no longer at the same place
