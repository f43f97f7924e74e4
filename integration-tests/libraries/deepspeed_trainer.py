"""The Trainer of transformers with a config file of DeepSpeed, as its users write it; interrupted, then resumed."""

import json
import sys
from pathlib import Path

import tiny
import torch
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

folder, num_rows = Path(sys.argv[1]), int(sys.argv[2])
tokenizer = tiny.make_tokenizer()
encoded = [tokenizer(text)["input_ids"] for text in tiny.make_texts()]
rows = [{"input_ids": tokens, "labels": tokens} for tokens in encoded]


def plain_optimizers(model):
    """Return what is in the config file; a warm-up of DeepSpeed's begins one step late."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(max(step - 1, 0) / 2, 1))


def train(name):
    """Train, evaluate and save; return what the Trainer has logged."""
    arguments = TrainingArguments(
        str(folder / name), use_cpu=True, ddp_backend="gloo", report_to=[], disable_tqdm=True, logging_steps=1,
        per_device_train_batch_size=num_rows, gradient_accumulation_steps=2, max_steps=4, save_steps=2,
        learning_rate=1e-2, warmup_steps=2, max_grad_norm=0.5,
        eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=num_rows,
        deepspeed=None if name == "plain" else str(folder / "zero3.json"),
    )  # fmt: skip
    model = LlamaForCausalLM.from_pretrained(folder / "start")  # sharded as it is built, under ZeRO 3
    optimizers = plain_optimizers(model) if name == "plain" else (None, None)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:8], optimizers=optimizers)
    trainer.train(
        resume_from_checkpoint=str(folder / "whole" / "checkpoint-2") if name == "resumed" else None
    )
    trainer.save_model(str(folder / name / "saved"))
    keys = ("loss", "grad_norm", "eval_loss")
    return [{key: entry[key] for key in keys if key in entry} for entry in trainer.state.log_history]


found = {name: train(name) for name in ("plain", "whole", "resumed")}
if tiny.rank() == "0":
    (folder / "found.json").write_text(json.dumps(found))
