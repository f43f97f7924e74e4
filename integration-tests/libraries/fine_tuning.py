"""Supervised fine-tuning by TRL."""

import json
import sys

import tiny
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

trainer = SFTTrainer(
    tiny.make_model(),
    SFTConfig(
        sys.argv[1], use_cpu=True, per_device_train_batch_size=4, max_steps=12, logging_steps=1, report_to=[],
        bf16=False, gradient_checkpointing=False, max_length=16, learning_rate=1e-2, save_strategy="no",
        disable_tqdm=True,
    ),
    train_dataset=Dataset.from_dict({"text": tiny.make_texts()}),
    processing_class=tiny.make_tokenizer(),
)  # fmt: skip
trainer.train()
if trainer.is_world_process_zero():
    print("LOSSES", json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]))
