"""The Trainer of transformers with adapters, quantized and offloaded; `trainer_options.py` has its other settings."""

import sys

import tiny
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig, LlamaForCausalLM, Trainer, TrainingArguments

folder = sys.argv[1]
saved = tiny.save_model(folder)  # before the processes know of each other: then each writes its own
tokenizer = tiny.make_tokenizer()
rows = [
    {"input_ids": tokens, "labels": tokens}
    for tokens in (tokenizer(text)["input_ids"] for text in tiny.make_texts())
]


def make_trainer(name, model, **settings):
    return Trainer(
        model,
        TrainingArguments(
            f"{folder}/{name}",
            **{
                "use_cpu": True, "per_device_train_batch_size": 8 // tiny.world_size(), "max_steps": 4,
                "logging_steps": 1, "report_to": [], "save_steps": 2, "learning_rate": 1e-2,
                "disable_tqdm": True, **settings,
            },
        ),
        train_dataset=rows,
        eval_dataset=rows[:7],
    )  # fmt: skip


def losses(name, model, *, resume=None, **settings):
    trainer = make_trainer(name, model, **settings)
    trainer.train(resume_from_checkpoint=resume)
    return tiny.losses_of(trainer)


def adapters(model):
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))


found = {
    "plain": losses("plain", tiny.make_model(), max_steps=12),
    "adapters": losses("adapters", adapters(tiny.make_model())),
    "adapters, resumed": losses("adapters", adapters(tiny.make_model()), resume=f"{folder}/adapters/checkpoint-2"),
}  # fmt: skip
for name, quantization in {
    "8 bits": BitsAndBytesConfig(load_in_8bit=True),
    "4 bits": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
}.items():
    model = LlamaForCausalLM.from_pretrained(saved, quantization_config=quantization, device_map={"": "cpu"})
    model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
    found[name] = losses(name, adapters(model), max_steps=12)
if tiny.world_size() == 1:  # Accelerate refuses a model with a map on more
    offloaded = LlamaForCausalLM.from_pretrained(
        saved, device_map="auto", max_memory={"cpu": 40_000}, offload_folder=f"{folder}/disk-{tiny.rank()}"
    )
    assert "disk" in offloaded.hf_device_map.values(), offloaded.hf_device_map
    found["evaluated"] = [
        make_trainer("whole", tiny.make_model()).evaluate()["eval_loss"],
        make_trainer("offloaded", offloaded).evaluate()["eval_loss"],
    ]
tiny.report(found)
