"""A model of sentences, trained by sentence-transformers."""

import sys
from pathlib import Path

import tiny
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)
from transformers import BertConfig, BertModel

folder = Path(sys.argv[1])
own = folder / f"bert-{tiny.rank()}"
tokenizer = tiny.make_tokenizer()
tokenizer.save_pretrained(own)
tiny.torch.manual_seed(0)
BertModel(
    BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )
).save_pretrained(own)  # fmt: skip
inner = models.Transformer(str(own))
model = SentenceTransformer(modules=[inner, models.Pooling(16)], device="cpu")
texts = tiny.make_texts()
trainer = SentenceTransformerTrainer(
    model,
    SentenceTransformerTrainingArguments(
        str(folder), use_cpu=True, per_device_train_batch_size=4, max_steps=12, logging_steps=1, report_to=[],
        learning_rate=1e-2, save_strategy="no", disable_tqdm=True,
    ),
    train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts[::-1]}),
    loss=losses.MultipleNegativesRankingLoss(model),
)  # fmt: skip
trainer.train()
tiny.report({"train": tiny.losses_of(trainer)})
