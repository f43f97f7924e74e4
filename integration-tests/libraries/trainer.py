"""The Trainer of transformers, as its users write it; prints losses and writes the trained weights."""

import json
import sys

import tiny
from transformers import Trainer, TrainingArguments

folder, settings = sys.argv[1], json.loads(sys.argv[2])
lora, resume = settings.pop("lora", False), settings.pop("resume", None)
tokenizer = tiny.make_tokenizer()
encoded = [tokenizer(text)["input_ids"] for text in tiny.make_texts()]
model = tiny.make_model()
if lora:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))
trainer = Trainer(
    model,
    TrainingArguments(
        folder,
        **{
            "use_cpu": True, "per_device_train_batch_size": 4, "max_steps": 4, "logging_steps": 1, "report_to": [],
            "save_steps": 2, "learning_rate": 1e-2, "ddp_backend": "gloo", "disable_tqdm": True, **settings,
        },
    ),
    train_dataset=[{"input_ids": tokens, "labels": tokens} for tokens in encoded],
)  # fmt: skip
trainer.train(resume_from_checkpoint=resume)
if trainer.is_world_process_zero():
    print("LOSSES", json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]))
