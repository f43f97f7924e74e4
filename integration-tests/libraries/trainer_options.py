"""The Trainer of transformers under one of its options after another: losses, metrics and final weights of each.

``trainer_options.py FOLDER [NAME …]`` runs the named options and prints a line of JSON for each.
"""

import json
import shutil
import sys

import tiny
import torch
from torch.utils.data import IterableDataset
from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments

folder, *chosen = sys.argv[1:]
tokenizer = tiny.make_tokenizer()
lengths = torch.randint(3, 12, (64,), generator=torch.Generator().manual_seed(1)).tolist()
tokens = [
    torch.randint(4, 20, (length,), generator=torch.Generator().manual_seed(length + 100 * index)).tolist()
    for index, length in enumerate(lengths)
]
rows = [{"input_ids": row, "labels": row, "attention_mask": [1] * len(row)} for row in tokens]
LLAMA = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
ONE_BY_ONE = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}


EPOCHS = {"max_steps": -1, "num_train_epochs": 2}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}
SAVED = {"save_strategy": "steps", "save_steps": 2}


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(rows[:33])


def fsdp(version=2, kind="full_shard", **config):
    return {"fsdp": kind, "fsdp_config": {"version": version, **LLAMA, **config}}


def accelerator(**config):
    return {"accelerator_config": config}


def accumulation(**kwargs):
    return accelerator(gradient_accumulation_kwargs=kwargs)


OPTIONS = {
    "accumulated epochs": {**ONE_BY_ONE, "gradient_accumulation_steps": 3, **EPOCHS},
    "dispatch_batches": accelerator(dispatch_batches=True),
    "even_batches off": accelerator(even_batches=False),
    "num_steps": accumulation(num_steps=2),
    "use_configured_state": accelerator(use_configured_state=True),
    "streamed, accumulated, resumed": {"train": "streamed", **ONE_BY_ONE, "resume": 3},
    "group_by_length": {"train_sampling_strategy": "group_by_length"},
    "batch_rebalance": {"train_sampling_strategy": "batch_rebalance", **ONE_BY_ONE},
    "bf16, accumulated, clipped": {"bf16": True, **ONE_BY_ONE, "max_grad_norm": 0.1},
    "tokens averaged on each": {**ONE_BY_ONE, "average_tokens_across_devices": False},
    "sgd, plateau": {"optim": "sgd", "lr_scheduler_type": "reduce_lr_on_plateau", **EVALUATED},
    "eval, in batches": {"batch_eval_metrics": True},
    "eval, with inputs and losses": {"include_for_metrics": ["inputs", "loss"]},
    "save_only_model": {**SAVED, "save_only_model": True},
    "resumed, accumulated": {"resume": 3, **ONE_BY_ONE},
    "fsdp, shard_grad_op": fsdp(kind="shard_grad_op auto_wrap"),
    "fsdp, resumed": {**fsdp(), "resume": 3},
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
        rows, labels, right = (sum(column) for column in zip(*self.seen, strict=True))
        result = {"rows": rows, "labels": labels, "right": right}
        if found.losses is not None:
            result["losses"] = float(found.losses.sum())
        if found.inputs is not None:
            result["inputs"] = int(found.inputs.sum())
        self.seen.clear()
        return result


def weights_of(trainer):
    """Return numbers that change with any weight, of the model as it is saved."""
    from safetensors.torch import load_file

    path = f"{folder}/weights"
    if tiny.rank() == "0":
        shutil.rmtree(path, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(path)
    trainer.accelerator.wait_for_everyone()
    state = load_file(f"{path}/model.safetensors")
    found = [
        float((state[name].double().flatten() * torch.arange(1, state[name].numel() + 1)).sum())
        for name in sorted(state)
    ]
    trainer.accelerator.wait_for_everyone()
    return found


def train(name, train=None, resume=None, **settings):
    path = f"{folder}/run"
    # Ranks that ran out of batches would wait for the others.
    is_uneven = settings.get("accelerator_config", {}).get("even_batches") is False
    if tiny.rank() == "0":
        shutil.rmtree(path, ignore_errors=True)
    if resume is not None:
        settings |= {"save_strategy": "steps", "save_steps": resume}
    settings = {
        "use_cpu": True, "per_device_train_batch_size": 4, "max_steps": 6,
        "per_device_eval_batch_size": 2, "logging_steps": 1, "report_to": [], "save_strategy": "no",
        "learning_rate": 1e-2, "disable_tqdm": True, **settings,
    }  # fmt: skip

    def make_trainer():
        torch.manual_seed(0)
        if settings.get("accelerator_config", {}).get("use_configured_state"):
            from accelerate import Accelerator

            Accelerator(cpu=True)
        return Trainer(
            tiny.make_model(),
            TrainingArguments(path, **json.loads(json.dumps(settings))),
            train_dataset=Streamed() if train == "streamed" else rows[: 32 if is_uneven else 33],
            eval_dataset=rows[49 if is_uneven else 50 : 57],
            # Accelerate dispatches batches of one shape only.
            data_collator=DataCollatorForTokenClassification(tokenizer, padding="max_length", max_length=12)
            if "dispatch" in name or "streamed" in name
            else DataCollatorForTokenClassification(tokenizer),
            compute_metrics=Metrics(),
        )

    trainer = make_trainer()
    trainer.train()
    if resume is not None:
        more = tiny.losses_of(trainer)[-1:]
        trainer = make_trainer()
        trainer.train(resume_from_checkpoint=f"{path}/checkpoint-{resume}")
    else:
        trainer.evaluate()
        predictions = trainer.predict(rows[56 if is_uneven else 57 : 60 if is_uneven else 62])
        found = predictions.predictions
        if found is not None:
            found = found[0] if isinstance(found, list) else found
        more = [len(predictions.label_ids) if predictions.label_ids is not None else 0]
        more.append(float(torch.as_tensor(0 if found is None else found).double().abs().sum()))
    skipped = ("runtime", "per_second", "flos", "epoch")
    history = [
        {key: value for key, value in entry.items() if not any(word in key for word in skipped)}
        for entry in trainer.state.log_history
    ]
    return {"history": history, "weights": weights_of(trainer), "more": more}


if __name__ == "__main__":
    for name in chosen:
        try:
            found = train(name, **OPTIONS[name])
        except Exception as error:  # noqa: BLE001 - both libraries are asked whether they refuse it
            found = {"error": f"{type(error).__name__}: {error}"[:400]}
        if tiny.rank() == "0":
            print("FOUND", json.dumps({name: found}), flush=True)
        if "error" in found and tiny.world_size() > 1:
            sys.exit(1)  # the ranks are no longer at the same place
