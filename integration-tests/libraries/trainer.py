"""The Trainer of transformers with one row of `ROWS` after another: losses, metrics and final weights of each.

``trainer.py FOLDER NAME …`` runs the named rows and prints a line for each.
"""

import json
import shutil
import sys

import tiny
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from safetensors.torch import load_file
from torch.utils.data import IterableDataset
from transformers import (
    BitsAndBytesConfig,
    DataCollatorForTokenClassification,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig

folder, *chosen = sys.argv[1:]
tokenizer = tiny.make_tokenizer()


def tokens(length, seed):
    return torch.randint(4, 20, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def rows_of(lengths):
    """Return sequences of these lengths."""
    found = [tokens(length, seed=length + 100 * index) for index, length in enumerate(lengths)]
    return [{"input_ids": row, "labels": row, "attention_mask": [1] * len(row)} for row in found]


RAGGED = rows_of(torch.randint(3, 12, (64,), generator=torch.Generator().manual_seed(1)).tolist())
OF_EIGHT = rows_of([8] * 64)
FSDP = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
TWICE = {"gradient_accumulation_steps": 2}
ONE_BY_ONE = {"per_device_train_batch_size": 2, **TWICE}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}
SHARED = {
    "rows": OF_EIGHT, "rows_of_step": 4, "max_grad_norm": 0.5, "max_steps": 4, "measured": "loss",
    "is_even": True, "ddp_backend": "gloo",
}  # fmt: skip
"""Ranks that share a model, and one process beside them, get as many rows together."""


QUANTIZED = {"max_steps": 12, "measured": ""}


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(RAGGED[:33])


def fsdp(version=2, kind="full_shard", **config):
    return {"fsdp": kind, "fsdp_config": {"version": version, **FSDP, **config}}


def accelerator(**config):
    return {"accelerator_config": config}


def adapters(model, dropout=0.1):
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=dropout))


def quantized(**config):
    config = BitsAndBytesConfig(**config)
    model = LlamaForCausalLM.from_pretrained(saved, quantization_config=config, device_map={"": "cpu"})
    return adapters(
        prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
    )


def sharded_as_loaded(**axes):
    return LlamaForCausalLM.from_pretrained(saved, distributed_config=DistributedConfig(**axes))


def offloaded():
    model = LlamaForCausalLM.from_pretrained(
        saved, device_map="auto", max_memory={"cpu": 40_000}, offload_folder=f"{folder}/disk"
    )
    assert "disk" in model.hf_device_map.values(), model.hf_device_map
    return model


ROWS = {
    "plain": {"max_steps": 12, "rows_of_step": 8, "is_even": True},
    "adapters": {"model": lambda: adapters(tiny.make_model()), "resume": 2},
    "8 bits": {**QUANTIZED, "model": lambda: quantized(load_in_8bit=True)},
    "4 bits": {**QUANTIZED, "model": lambda: quantized(load_in_4bit=True, bnb_4bit_quant_type="nf4")},
    "evaluated": {"max_steps": 0},
    "evaluated, offloaded": {"max_steps": 0, "model": offloaded},
    # compared with Accelerate
    "accumulated epochs": {**ONE_BY_ONE, "gradient_accumulation_steps": 3, "max_steps": -1, "num_train_epochs": 2},
    "dispatch_batches": {**accelerator(dispatch_batches=True), "max_length": 12},
    "even_batches off": {**accelerator(even_batches=False), "is_even": True},
    "num_steps": accelerator(gradient_accumulation_kwargs={"num_steps": 2}),
    "use_configured_state": accelerator(use_configured_state=True),
    # Accelerate dispatches batches of one shape only.
    "streamed, accumulated, resumed": {"rows": Streamed(), **ONE_BY_ONE, "resume": 3, "max_length": 12},
    "group_by_length": {"train_sampling_strategy": "group_by_length"},
    "batch_rebalance": {"train_sampling_strategy": "batch_rebalance", **ONE_BY_ONE},
    "bf16, accumulated, clipped": {"bf16": True, **ONE_BY_ONE, "max_grad_norm": 0.1},
    "tokens averaged on each": {**ONE_BY_ONE, "average_tokens_across_devices": False},
    "sgd, plateau": {"optim": "sgd", "lr_scheduler_type": "reduce_lr_on_plateau", **EVALUATED},
    "eval, in batches": {"batch_eval_metrics": True},
    "eval, with inputs and losses": {"include_for_metrics": ["inputs", "loss"]},
    "save_only_model": {"save_strategy": "steps", "save_steps": 2, "save_only_model": True},
    "resumed, accumulated": {"resume": 3, **ONE_BY_ONE},
    "fsdp, shard_grad_op": fsdp(kind="shard_grad_op auto_wrap"),
    "fsdp, resumed": {**fsdp(), "resume": 3},
    # compared with one process
    "shared": SHARED,
    "shared, accumulated": {**SHARED, **TWICE},
    "shared, adapters": {**SHARED, "model": lambda: adapters(tiny.make_model(), dropout=0.0)},
    "tp auto": {
        **SHARED, "num_data_ranks": 1, "model": lambda: LlamaForCausalLM.from_pretrained(saved, tp_plan="auto")
    },
    "loaded by fsdp, accumulated": {**SHARED, "model": lambda: sharded_as_loaded(fsdp_size=2), **TWICE},
    "loaded by fsdp, adapters": {**SHARED, "model": lambda: adapters(sharded_as_loaded(fsdp_size=2), dropout=0.0)},
    "cp": {**SHARED, "num_data_ranks": 1, "parallelism": {"cp_size": 2}, "fsdp": True, "fsdp_config": FSDP},
}  # fmt: skip


class Metrics:
    """Count rows and right answers, of all at once or batch by batch."""

    def __init__(self):
        self.seen = []

    def __call__(self, found, compute_result=True):
        predictions, labels = found.predictions, found.label_ids
        batches = predictions if isinstance(predictions, list) else [predictions]
        references = labels if isinstance(labels, list) else [labels]
        for batch, reference in zip(batches, references, strict=True):
            batch, reference = torch.as_tensor(batch), torch.as_tensor(reference)
            right = (batch[:, :-1].argmax(-1) == reference[:, 1:]) & (reference[:, 1:] != -100)
            self.seen.append((len(reference), int((reference != -100).sum()), int(right.sum())))
        if not compute_result:
            return {}
        result = dict(zip(("rows", "labels", "right"), map(sum, zip(*self.seen, strict=True)), strict=True))
        for name, one in (("losses", found.losses), ("inputs", found.inputs)):
            if one is not None:
                result[name] = float(one.sum())
        self.seen.clear()
        return result


def weights_of(trainer):
    """Return numbers that change with any weight, of the model as it is saved."""
    path = f"{folder}/weights"
    trainer.save_model(path)
    trainer.accelerator.wait_for_everyone()
    names = {"model.safetensors", "adapter_model.safetensors"}
    state = {name: one for file in names for name, one in read_weights(f"{path}/{file}").items()}
    found = [
        float((state[name].double().abs().flatten() * torch.arange(1, state[name].numel() + 1)).sum())
        for name in sorted(state)
    ]
    trainer.accelerator.wait_for_everyone()
    if tiny.rank() == "0":
        shutil.rmtree(path)
    trainer.accelerator.wait_for_everyone()
    return found


def read_weights(path):
    try:
        return load_file(path)
    except FileNotFoundError:
        return {}


def train(
    model=tiny.make_model, rows=RAGGED, resume=None, parallelism=None, rows_of_step=None, num_data_ranks=None,
    max_length=None, is_even=False, measured="all", **settings,
):  # fmt: skip
    path = f"{folder}/run"
    size = rows_of_step // (num_data_ranks or tiny.world_size()) if rows_of_step else 4
    if parallelism:
        from accelerate.utils import ParallelismConfig

        settings["parallelism_config"] = ParallelismConfig(**parallelism)
    if resume is not None:
        settings |= {"save_strategy": "steps", "save_steps": resume}
    settings = {
        "use_cpu": True, "per_device_train_batch_size": size, "max_steps": 6,
        "per_device_eval_batch_size": 2, "logging_steps": 1, "report_to": [], "save_strategy": "no",
        "learning_rate": 1e-2, "disable_tqdm": True, **settings,
    }  # fmt: skip
    # Ranks that ran out of batches would wait for the others.
    held_out = rows if isinstance(rows, list) else RAGGED
    ends = (32, 49, 56, 60) if is_even else (33, 50, 57, 62)

    def make_trainer():
        torch.manual_seed(0)
        if settings.get("accelerator_config", {}).get("use_configured_state"):
            from accelerate import Accelerator

            Accelerator(cpu=True)
        padding = {"padding": "max_length", "max_length": max_length} if max_length else {}
        return Trainer(
            model(),
            TrainingArguments(path, **settings),
            train_dataset=rows[: ends[0]] if isinstance(rows, list) else rows,
            eval_dataset=held_out[ends[1] : 57],
            data_collator=DataCollatorForTokenClassification(tokenizer, **padding),
            compute_metrics=Metrics() if measured == "all" else None,
        )

    trainer, more = make_trainer(), []
    if settings["max_steps"]:
        trainer.train()
    if resume is not None:
        more = tiny.losses_of(trainer)
        trainer = make_trainer()
        trainer.train(resume_from_checkpoint=f"{path}/checkpoint-{resume}")
    elif measured:
        trainer.evaluate()
    if measured == "all" and resume is None:
        predictions = trainer.predict(held_out[ends[2] : ends[3]])
        found = predictions.predictions
        found = found[0] if isinstance(found, list) else found
        more = [len(predictions.label_ids) if predictions.label_ids is not None else 0]
        more.append(float(torch.as_tensor(0 if found is None else found).double().abs().sum()))
    skipped = ("runtime", "per_second", "flos", "epoch")
    history = [
        {key: value for key, value in entry.items() if not any(word in key for word in skipped)}
        for entry in trainer.state.log_history
    ]
    weights = weights_of(trainer) if settings["max_steps"] else []
    if tiny.rank() == "0":
        shutil.rmtree(path, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    return {"history": history, "losses": tiny.losses_of(trainer), "weights": weights, "more": more}


if __name__ == "__main__":
    saved = tiny.save_model(folder)  # before the processes know of each other: then each writes its own
    for name in chosen:
        found = train(**ROWS[name])
        tiny.report({name: json.loads(json.dumps(found))})
