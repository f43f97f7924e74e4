"""Small local stand-ins for what scripts take from the network: a tokenizer, models, the MRPC data set, a metric.

They are made here, the same in each process and with each library.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import datasets
import peer_images
import tokenizers
import torch
import transformers
from torch.utils.data import DataLoader

WORDS = tuple(f"{first}{last}" for first in "bcdfg" for last in ("at", "en", "ill", "oud", "urt"))
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
MAX_LENGTH = 24
EVAL_BATCH_SIZE = 32  # by which scripts repeat a loss that they gather
NUM_ROWS = {"train": 44, "validation": 19, "test": 19}


def rows(num_rows: int, *, seed: int) -> Mapping[str, Sequence[Any]]:
    """Return pairs of sentences, and whether they begin with the same letter."""
    draw = random.Random(seed)
    pairs = [[draw.choices(WORDS, k=draw.randint(3, 9)) for _ in range(2)] for _ in range(num_rows)]
    return {
        "sentence1": [" ".join(one) for one, _ in pairs],
        "sentence2": [" ".join(other) for _, other in pairs],
        "label": [int(one[0][0] == other[0][0]) for one, other in pairs],
        "idx": list(range(num_rows)),
    }


def data_set(*_: object, split: Any = None, **__: object) -> Any:
    """Stand in for `datasets.load_dataset`: our pairs, in the columns of MRPC."""
    labels = datasets.ClassLabel(names=["different", "equivalent"])
    parts = {}
    for seed, (name, num_rows) in enumerate(NUM_ROWS.items()):
        part = datasets.Dataset.from_dict(dict(rows(num_rows, seed=seed)))
        parts[name] = part.cast_column("label", labels)
    return parts[split] if isinstance(split, str) else datasets.DatasetDict(parts)


def tokenizer(*_: object, **__: object) -> transformers.PreTrainedTokenizerFast:
    """Stand in for `AutoTokenizer.from_pretrained`: a token for each of our words."""
    model = tokenizers.models.WordLevel(
        {word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"
    )
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=MAX_LENGTH, eos_token="[SEP]", **names
    )


def classifier(*_: object, **__: object) -> transformers.PreTrainedModel:
    """Stand in for `AutoModelForSequenceClassification.from_pretrained`: a tiny BERT with drawn weights."""
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL + WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=2 * MAX_LENGTH,
    )
    return transformers.BertForSequenceClassification(config)


def language_model(*_: object, **__: object) -> transformers.PreTrainedModel:
    """Stand in for `AutoModelForCausalLM.from_pretrained`: a tiny Llama with drawn weights."""
    config = transformers.LlamaConfig(
        vocab_size=len(SPECIAL + WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=32,
        max_position_embeddings=2 * MAX_LENGTH,
    )
    return transformers.LlamaForCausalLM(config)


def mocked_dataloaders(accelerator: Any, batch_size: int = 16) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Stand in for the function of this name in Accelerate's test utilities, whose files are not distributed."""
    words, parts = tokenizer(), data_set()
    parts = parts.map(lambda batch: words(batch["sentence1"], batch["sentence2"]), batched=True)
    parts = parts.remove_columns(["idx", "sentence1", "sentence2"]).rename_column("label", "labels")
    collate = partial(words.pad, padding="longest", return_tensors="pt")
    return (
        DataLoader(parts["train"], shuffle=True, collate_fn=collate, batch_size=4),
        DataLoader(parts["validation"], collate_fn=collate, batch_size=4),
    )


def mocked_dataloaders_for_autoregressive_models(
    accelerator: Any, batch_size: int = 16
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Stand in for the function of this name: texts of several lengths, each token of which predicts the next."""
    words, parts = tokenizer(), data_set()

    def collate(batch: Sequence[Mapping[str, Any]]) -> Mapping[str, torch.Tensor]:
        found = words([row["sentence1"] for row in batch], padding=True, return_tensors="pt")
        tokens, mask = found["input_ids"], found["attention_mask"]
        labels = tokens[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
        return {"input_ids": tokens[:, :-1], "attention_mask": mask[:, :-1], "labels": labels}

    return (
        DataLoader(parts["train"], collate_fn=collate, batch_size=batch_size),
        DataLoader(parts["validation"], collate_fn=collate, batch_size=EVAL_BATCH_SIZE),
    )


class Metric:
    """Stands in for what `evaluate.load` returns: accuracy, and F1 of label 1."""

    def __init__(self, *_: object, **__: object) -> None:
        self._pairs: list[tuple[int, int]] = []

    def add_batch(self, *, predictions: Iterable[Any], references: Iterable[Any]) -> None:
        """Add predictions with the labels that they should be."""
        self._pairs += [(int(one), int(other)) for one, other in zip(predictions, references, strict=True)]

    def compute(self, *, predictions: Iterable[Any] = (), references: Iterable[Any] = ()) -> dict[str, float]:
        """Return the metrics of all that was added, and forget it."""
        self.add_batch(predictions=predictions, references=references)
        pairs, self._pairs = self._pairs, []
        found = sum(one == other == 1 for one, other in pairs)
        total = sum(one + other for one, other in pairs)
        accuracy = sum(one == other for one, other in pairs) / len(pairs)
        return {"accuracy": accuracy, "f1": 2 * found / total if total else 0.0, "rows": len(pairs)}


def shuffle_alike() -> None:
    """Use the seedable sampler unless a script chooses: only then is the order on several ranks Accelerate's."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    construct = Accelerator.__init__

    def constructed(self: Accelerator, **keywords: Any) -> None:
        construct(
            self, **{"dataloader_config": DataLoaderConfiguration(use_seedable_sampler=True)} | keywords
        )

    Accelerator.__init__ = constructed


def install() -> None:
    """Put the stand-ins where scripts look for the real ones."""
    shuffle_alike()
    datasets.load_dataset = data_set
    datasets.disable_progress_bars()
    transformers.AutoTokenizer.from_pretrained = tokenizer
    transformers.AutoModelForSequenceClassification.from_pretrained = classifier
    transformers.AutoModelForCausalLM.from_pretrained = language_model
    evaluate = ModuleType("evaluate")
    evaluate.load = Metric
    sys.modules["evaluate"] = evaluate
    import accelerate.test_utils.training

    training = accelerate.test_utils.training
    training.mocked_dataloaders = mocked_dataloaders
    training.mocked_dataloaders_for_autoregressive_models = mocked_dataloaders_for_autoregressive_models
    torch.manual_seed(0)  # for models that scripts make without a seed
    peer_images.install()
