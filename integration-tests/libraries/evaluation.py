"""A task evaluated by lm-evaluation-harness, whose requests are distributed over the processes and padded there."""

import json
import sys
from pathlib import Path

import tiny
import yaml
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

folder = Path(sys.argv[1], str(tiny.rank()))
saved = tiny.save_model(folder)
tiny.make_tokenizer().save_pretrained(saved)
rows = [
    {"text": text, "choices": text.split()[:3], "answer": index % 3}
    for index, text in enumerate(tiny.make_texts(7))
]
(folder / "rows.json").write_text("\n".join(map(json.dumps, rows)))
task = {
    "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "rows.json")}},
    "test_split": "test", "doc_to_text": "{{text}}",
}  # fmt: skip
choice = {
    "task": "choice", "output_type": "multiple_choice", "doc_to_target": "answer", "doc_to_choice": "choices",
    "metric_list": [{"metric": "acc"}, {"metric": "brier_score"}],
}  # fmt: skip
perplexity = {
    "task": "perplexity", "output_type": "loglikelihood_rolling", "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "word_perplexity"}],
}  # fmt: skip
generation = {
    "task": "generation", "output_type": "generate_until", "doc_to_target": "{{choices[0]}}",
    "generation_kwargs": {"max_gen_toks": 4, "do_sample": False}, "metric_list": [{"metric": "exact_match"}],
}  # fmt: skip
tasks = (choice, perplexity, generation)
for each in tasks:
    (folder / f"{each['task']}.yaml").write_text(yaml.safe_dump(task | each))
results = simple_evaluate(
    HFLM(pretrained=saved, device="cpu", batch_size=2, backend="causal"),
    tasks=[each["task"] for each in tasks],
    task_manager=TaskManager(include_path=str(folder), include_defaults=False),
    bootstrap_iters=0,
)
if tiny.rank() == "0":
    tiny.report(
        {
            name: [value for metric, value in sorted(found.items()) if isinstance(value, float)]
            + [float(len(results["samples"][name]))]
            for name, found in results["results"].items()
        }
    )
