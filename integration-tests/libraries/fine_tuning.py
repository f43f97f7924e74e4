"""Fine-tuning by TRL: supervised, from preferences, and by rewards."""

import sys

import tiny
from datasets import Dataset
from transformers import LlamaForCausalLM
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

folder = sys.argv[1]
texts = tiny.make_texts()
saved = tiny.save_model(folder)  # read again for the model of reference
settings = {
    "use_cpu": True, "per_device_train_batch_size": 4, "max_steps": 12, "logging_steps": 1, "report_to": [],
    "bf16": False, "gradient_checkpointing": False, "learning_rate": 1e-2, "save_strategy": "no", "disable_tqdm": True,
}  # fmt: skip


def trained(trainer):
    trainer.train()
    return trainer


def reward(completions, **kwargs):
    """Prefer the word `the`."""
    return [float(text.split().count("the")) for text in completions]


supervised = trained(
    SFTTrainer(
        tiny.make_model(),
        SFTConfig(f"{folder}/sft", max_length=16, **settings),
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tiny.make_tokenizer(),
    )
)
preferring = trained(
    DPOTrainer(
        LlamaForCausalLM.from_pretrained(saved),
        args=DPOConfig(f"{folder}/dpo", max_length=16, **settings),
        train_dataset=Dataset.from_dict(
            {"prompt": texts, "chosen": [" the cat"] * len(texts), "rejected": [" no why"] * len(texts)}
        ),
        processing_class=tiny.make_tokenizer(),
    )
)
rewarded = trained(
    GRPOTrainer(
        LlamaForCausalLM.from_pretrained(saved),
        reward,
        args=GRPOConfig(
            f"{folder}/grpo",
            num_generations=4,
            max_completion_length=8,
            beta=0.1,
            **{**settings, "max_steps": 6},
        ),
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=tiny.make_tokenizer(),
    )
)
tiny.report(
    {
        "supervised": tiny.losses_of(supervised),
        "preferences": tiny.losses_of(preferring),
        "rewards": [-entry["reward"] for entry in rewarded.state.log_history if "reward" in entry],
        "policy": tiny.losses_of(rewarded),
    }
)
