"""The Trainer of transformers under one of its options after another: losses, metrics and final weights of each.

``trainer_options.py FOLDER [NAME …]`` runs the named options, or all, and prints a line of JSON for each.
"""

import json
import os
import shutil
import sys
from typing import ClassVar

import tiny
import torch
from torch.utils.data import IterableDataset
from transformers import (
    DataCollatorForTokenClassification,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

folder, *chosen = sys.argv[1:] if "--list" not in sys.argv else ("", "--list")
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
COMPILED = {"torch_compile": True, "torch_compile_backend": "aot_eager"}


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(rows[:33])


class OutOfMemory(TrainerCallback):
    """Fail above a batch size, as a device does whose memory ends, and record which sizes were tried."""

    tried: ClassVar[list[int]] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.tried.append(state.train_batch_size)
        if state.train_batch_size > 2:
            raise RuntimeError("CUDA out of memory.")


def fsdp(version=2, kind="full_shard", **config):
    return {"fsdp": kind, "fsdp_config": {"version": version, **LLAMA, **config}}


def accelerator(**config):
    return {"accelerator_config": config}


def accumulation(**kwargs):
    return accelerator(gradient_accumulation_kwargs=kwargs)


OPTIONS = {
    "plain": {},
    "epochs": {**EPOCHS},
    "accumulated": ONE_BY_ONE,
    "accumulated epochs": {**ONE_BY_ONE, "gradient_accumulation_steps": 3, **EPOCHS},
    "drop last": {"dataloader_drop_last": True, **EPOCHS},
    "split_batches": accelerator(split_batches=True),
    "dispatch_batches": accelerator(dispatch_batches=True),
    "dispatch and split": accelerator(dispatch_batches=True, split_batches=True),
    "even_batches off": accelerator(even_batches=False),
    "use_seedable_sampler off": accelerator(use_seedable_sampler=False),
    "non_blocking": accelerator(non_blocking=True),
    "num_steps": accumulation(num_steps=2),
    "sync_each_batch": {**ONE_BY_ONE, **accumulation(sync_each_batch=True)},
    "sync_with_dataloader off": {**ONE_BY_ONE, **accumulation(sync_with_dataloader=False)},
    "adjust_scheduler off": {**ONE_BY_ONE, **accumulation(adjust_scheduler=False)},
    "use_configured_state": accelerator(use_configured_state=True),
    "streamed": {"train": "streamed"},
    "streamed, dispatched": {"train": "streamed", **accelerator(dispatch_batches=True)},
    "streamed, read by each": {"train": "streamed", **accelerator(dispatch_batches=False)},
    "streamed, split": {"train": "streamed", **accelerator(split_batches=True)},
    "streamed, drop last": {"train": "streamed", "dataloader_drop_last": True},
    "streamed, accumulated, resumed": {"train": "streamed", **ONE_BY_ONE, "resume": 3},
    "group_by_length": {"train_sampling_strategy": "group_by_length"},
    "sequential": {"train_sampling_strategy": "sequential"},
    "batch_rebalance": {"train_sampling_strategy": "batch_rebalance", **ONE_BY_ONE},
    "data_seed": {"data_seed": 7},
    "full_determinism": {"full_determinism": True},
    "workers": {"dataloader_num_workers": 2},
    "workers, persistent": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
    "workers, reading ahead": {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 3},
    "in_order off": {"dataloader_num_workers": 1, "dataloader_in_order": False},
    "pinned": {"dataloader_pin_memory": False},
    "bf16": {"bf16": True},
    "bf16, accumulated, clipped": {"bf16": True, **ONE_BY_ONE, "max_grad_norm": 0.1},
    "bf16_full_eval": {"bf16_full_eval": True},
    "fp16": {"fp16": True},
    "clipped": {"max_grad_norm": 0.1},
    "clipping off": {"max_grad_norm": 0},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "tokens averaged on each": {**ONE_BY_ONE, "average_tokens_across_devices": False},
    "tokens counted": {"include_num_input_tokens_seen": "non_padding"},
    "torch_compile": {**COMPILED},
    "activation_checkpointing": {"activation_checkpointing": True, "model": {"attention_dropout": 0.1}},
    "neftune": {"neftune_noise_alpha": 5.0},
    "adafactor": {"optim": "adafactor"},
    "sgd, plateau": {"optim": "sgd", "lr_scheduler_type": "reduce_lr_on_plateau", **EVALUATED},
    "cosine, warmup": {"lr_scheduler_type": "cosine", "warmup_steps": 2},
    "auto_find_batch_size": {"auto_find_batch_size": True, "callbacks": [OutOfMemory]},
    "eval, accumulated": {"eval_accumulation_steps": 1, **EVALUATED},
    "eval, in batches": {"batch_eval_metrics": True},
    "eval, not joined": {"eval_do_concat_batches": False},
    "eval, gathered as objects": {"eval_use_gather_object": True},
    "eval, with inputs and losses": {"include_for_metrics": ["inputs", "loss"]},
    "eval, loss only": {"prediction_loss_only": True},
    "eval, split": accelerator(split_batches=True, even_batches=False),
    "eval, dispatched": {**accelerator(dispatch_batches=True), "per_device_eval_batch_size": 4},
    "best model": {"load_best_model_at_end": True, **EVALUATED, **SAVED, "save_total_limit": 1},
    "save_only_model": {**SAVED, "save_only_model": True},
    "resumed": {"resume": 3},
    "resumed, dropout": {"resume": 3, "model": {"attention_dropout": 0.1}},
    "resumed, accumulated": {"resume": 3, **ONE_BY_ONE},
    "resumed, bf16": {"resume": 3, "bf16": True},
    "resumed, reading from the start": {"resume": 3, "ignore_data_skip": True},
    "resumed, dispatched": {"resume": 3, **accelerator(dispatch_batches=True)},
    "resumed, second epoch": {"resume": 12, "max_steps": 14},
    "resumed, plain sampler": {"resume": 3, **accelerator(use_seedable_sampler=False)},
    "resumed, group_by_length": {"resume": 3, "train_sampling_strategy": "group_by_length"},
    "resumed, workers": {"resume": 3, "dataloader_num_workers": 1},
    "ddp_find_unused_parameters off": {"ddp_find_unused_parameters": False},
    "ddp_static_graph": {"ddp_static_graph": True},
    "ddp buckets": {"ddp_bucket_cap_mb": 1, "ddp_broadcast_buffers": False},
    "generated": {"kind": "seq2seq"},
    "fsdp": fsdp(),
    "fsdp, accumulated": {**fsdp(), **ONE_BY_ONE},
    "fsdp, clipped, bf16": {**fsdp(), "bf16": True, "max_grad_norm": 0.1},
    "fsdp, shard_grad_op": fsdp(kind="shard_grad_op auto_wrap"),
    "fsdp, offload": fsdp(kind="full_shard offload auto_wrap"),
    "fsdp, as a flag": {**fsdp(), "fsdp": True},
    "fsdp, prefixed keys": {"fsdp": True, "fsdp_config": {f"fsdp_{key}": value for key, value in LLAMA.items()}},
    "fsdp, nothing named": {"fsdp": True},
    "fsdp, by size": fsdp(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=2000),
    "fsdp, NO_WRAP": fsdp(auto_wrap_policy="NO_WRAP"),
    "fsdp, loading on rank 0": fsdp(cpu_ram_efficient_loading=True),
    "fsdp, checkpointing": fsdp(activation_checkpointing=True),
    "fsdp, checkpointing of transformers": {**fsdp(), "activation_checkpointing": True},
    "fsdp, reshard_after_forward off": fsdp(reshard_after_forward=False),
    "fsdp, resumed": {**fsdp(), "resume": 3},
    "fsdp, resumed, sharded": {**fsdp(state_dict_type="SHARDED_STATE_DICT"), "resume": 3},
    "fsdp, save_only_model": {**fsdp(), **SAVED, "save_only_model": True},
    "fsdp, best model": {**fsdp(), "load_best_model_at_end": True, **EVALUATED, **SAVED},
    "fsdp, compiled": {**fsdp(), **COMPILED},
    "fsdp, groups and streams": {**fsdp(), "train": "streamed", "resume": 3},
    "fsdp, tied": {**fsdp(), "model": {"tie_word_embeddings": True}},
    "fsdp1": fsdp(1),
    "fsdp1, accumulated": {**fsdp(1), **ONE_BY_ONE},
    "fsdp1, shard_grad_op": fsdp(1, "shard_grad_op"),
    "fsdp1, no_shard": fsdp(1, "no_shard"),
    "fsdp1, hybrid_shard": fsdp(1, "hybrid_shard"),
    "fsdp1, offload": fsdp(1, "full_shard offload"),
    "fsdp1, prefetching": fsdp(1, forward_prefetch=True, backward_prefetch="backward_pre", limit_all_gathers=True),
    "fsdp1, flat": fsdp(1, use_orig_params=False),
    "fsdp1, not synchronized": fsdp(1, sync_module_states=False),
    "fsdp1, by size": fsdp(1, auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=2000),
    "fsdp1, checkpointing": fsdp(1, activation_checkpointing=True),
    "fsdp1, resumed": {**fsdp(1), "resume": 3},
    "fsdp1, resumed, sharded": {**fsdp(1, state_dict_type="SHARDED_STATE_DICT"), "resume": 3},
    "fsdp1, resumed, local": {**fsdp(1, state_dict_type="LOCAL_STATE_DICT"), "resume": 3},
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
    if not os.path.exists(f"{path}/model.safetensors"):  # SHARDED_STATE_DICT
        return []
    state = load_file(f"{path}/model.safetensors")
    found = [
        float((state[name].double().flatten() * torch.arange(1, state[name].numel() + 1)).sum())
        for name in sorted(state)
    ]
    trainer.accelerator.wait_for_everyone()
    return found


def train(name, model=None, train=None, resume=None, kind=None, callbacks=(), **settings):
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
    if kind == "seq2seq":
        config = T5Config(
            vocab_size=24, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
        classes = Seq2SeqTrainer, Seq2SeqTrainingArguments
        settings |= {"predict_with_generate": True, "generation_max_length": 6}
    else:
        config = None
        classes = Trainer, TrainingArguments

    def make_trainer():
        torch.manual_seed(0)
        if settings.get("accelerator_config", {}).get("use_configured_state"):
            from accelerate import Accelerator

            Accelerator(cpu=True)
        return classes[0](
            T5ForConditionalGeneration(config) if config else tiny.make_model(**(model or {})),
            classes[1](path, **json.loads(json.dumps(settings))),
            train_dataset=Streamed() if train == "streamed" else rows[: 32 if is_uneven else 33],
            eval_dataset=rows[49 if is_uneven else 50 : 57],
            # Accelerate dispatches batches of one shape only.
            data_collator=DataCollatorForTokenClassification(tokenizer, padding="max_length", max_length=12)
            if "dispatch" in name or "streamed" in name
            else DataCollatorForTokenClassification(tokenizer),
            compute_metrics=None if kind else Metrics(),
            callbacks=[callback() for callback in callbacks],
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
    found = {"history": history, "weights": weights_of(trainer), "more": more}
    if callbacks:
        found["tried"] = list(dict.fromkeys(OutOfMemory.tried))
        OutOfMemory.tried.clear()
    return found


if __name__ == "__main__":
    if chosen == ["--list"]:
        print("\n".join(OPTIONS))
        sys.exit()
    for name in chosen or OPTIONS:
        try:
            found = train(name, **OPTIONS[name])
        except Exception as error:  # noqa: BLE001 - both libraries are asked whether they refuse it
            found = {"error": f"{type(error).__name__}: {error}"[:400]}
        if tiny.rank() == "0":
            print("FOUND", json.dumps({name: found}), flush=True)
        if "error" in found and tiny.world_size() > 1:
            sys.exit(1)  # the ranks are no longer at the same place
