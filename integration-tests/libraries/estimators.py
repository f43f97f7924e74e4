"""Estimators of scikit-learn that train with an Accelerator, by skorch: fitted, cloned, searched, pickled."""

import pickle
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import tiny
import torch
from accelerate import Accelerator
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_validate
from skorch import NeuralNetClassifier
from skorch.callbacks import GradientNormClipping, LRScheduler
from skorch.hf import AccelerateMixin


class Net(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 3)
        )

    def forward(self, X):
        return self.layers(X)


class Classifier(AccelerateMixin, NeuralNetClassifier):
    """A classifier with an Accelerator."""


def make(*, is_scheduled=True):
    torch.manual_seed(0)
    return Classifier(
        Net, criterion=torch.nn.CrossEntropyLoss, optimizer=torch.optim.AdamW, lr=0.05, max_epochs=3, batch_size=10,
        accelerator=Accelerator(cpu=True, gradient_accumulation_steps=2), verbose=0, train_split=None,
        callbacks=[
            GradientNormClipping(1.0),
            *([LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=2)] if is_scheduled else []),
        ],
    )  # fmt: skip


X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
y = X[:, :3].argmax(1)
net = make().fit(X, y)
torch.manual_seed(1)
cloned = clone(net).fit(X, y)
other = make(is_scheduled=False).fit(X, y)  # the optimizer of a schedule cannot be pickled with Accelerate
copied, unpickled = deepcopy(other), pickle.loads(pickle.dumps(other))
net.save_params(
    f_params=str(Path(sys.argv[1], "weights.pt")), f_optimizer=str(Path(sys.argv[1], "optimizer.pt"))
)
loaded = make().initialize()
loaded.load_params(
    f_params=str(Path(sys.argv[1], "weights.pt")), f_optimizer=str(Path(sys.argv[1], "optimizer.pt"))
)
found = {"losses": net.history[:, "train_loss"], "cloned": cloned.history[:, "train_loss"]}
for name, each in {"fitted": net, "copied": copied, "unpickled": unpickled, "loaded": loaded}.items():
    found[name] = each.predict_proba(X[:5]).ravel().tolist()
loaded.partial_fit(X, y)
found["went on"] = loaded.history[:, "train_loss"]
torch.manual_seed(2)
found["validated"] = cross_validate(make(), X, y, cv=3)["test_score"].tolist()
torch.manual_seed(3)
search = GridSearchCV(make(), {"module__width": [4, 8]}, cv=2, refit=True).fit(X, y)
found["searched"] = [
    *search.cv_results_["mean_test_score"].tolist(),
    float(search.best_params_["module__width"]),
]
tiny.report(found)
