"""Metrics over several processes that equal those of one: every sample once, in the order of the data set.

    pip install scikit-learn
    python docs/examples/metrics.py
    accel launch --cpu --num_processes 3 docs/examples/metrics.py          # prints the same numbers

The mean of the ranks' F1 scores is not the F1 score: ranks have different samples, and the last batch repeats some so
that all ranks have equally many. `gather_for_metrics` leaves the repeated ones out; with `use_gather_object=True` it
gathers texts, dicts and lists of unlike lengths.
"""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import confusion_matrix, f1_score, roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.utils import set_seed


def main() -> None:
    accelerator = Accelerator()
    set_seed(0)
    table = load_breast_cancer()
    values = torch.tensor(table.data, dtype=torch.float64)
    values = (values - values.mean(0)) / values.std(0)
    labels = torch.tensor(table.target)
    data = TensorDataset(values[::2], labels[::2])  # 285 samples, which neither 2 nor 3 ranks share evenly
    model = nn.Linear(30, 2).double()  # untrained, so that its scores are no better than they should be
    test = DataLoader(data, batch_size=16)
    model, test = accelerator.prepare(model, test)
    model.eval()

    scores, truths, names = [], [], []
    for rows, truth in test:
        with torch.no_grad():
            guess = model(rows).softmax(1)
        every_score, every_truth = accelerator.gather_for_metrics((guess[:, 1], truth))
        scores.append(every_score.cpu())
        truths.append(every_truth.cpu())
        texts = [table.target_names[label] for label in truth.tolist()]
        names += accelerator.gather_for_metrics(texts, use_gather_object=True)

    score, truth = torch.cat(scores), torch.cat(truths)
    accelerator.print(
        f"{len(truth)} samples, {len(names)} names, in order: {torch.equal(truth, labels[::2])}"
    )
    accelerator.print(
        f"F1 {f1_score(truth, score > 0.5):.6f}, area under the curve {roc_auc_score(truth, score):.6f}"
    )
    accelerator.print(f"confusion matrix {confusion_matrix(truth, score > 0.5).tolist()}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
