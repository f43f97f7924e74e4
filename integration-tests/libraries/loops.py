"""A loop of pytorch-accelerated: its trainer with a metric, a schedule, and a state that it resumes from."""

import sys
from functools import partial

import tiny
import torch
from pytorch_accelerated import Trainer, TrainerPlaceholderValues
from pytorch_accelerated.callbacks import StopTrainingError, TrainerCallback
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

EPOCHS = 6


class Accuracy(TrainerCallback):
    """Counts right answers over all processes, padding removed."""

    def on_eval_epoch_start(self, trainer, **kwargs):
        self.right = []

    def on_eval_step_end(self, trainer, batch, batch_output, **kwargs):
        right = (batch_output["model_outputs"].argmax(1) == batch[1]).long()
        self.right.append(trainer.gather(right, padding_value=-1))

    def on_eval_epoch_end(self, trainer, **kwargs):
        right = torch.cat(self.right)
        trainer.run_history.update_metric("rows", len(right))
        trainer.run_history.update_metric("accuracy", right.double().mean().item())


class Keep(TrainerCallback):
    """Saves the state between two epochs."""

    def on_train_epoch_start(self, trainer, **kwargs):
        if trainer.run_history.current_epoch == EPOCHS // 2:
            trainer.save_training_state(f"{sys.argv[1]}/state")


class Stop(TrainerCallback):
    """Stops after the last epoch: a resumed run would continue."""

    def on_training_run_epoch_end(self, trainer, **kwargs):
        if trainer.run_history.current_epoch == EPOCHS:
            raise StopTrainingError("That was the last epoch.")


def train(*callbacks, **settings):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    rows = torch.randn(46, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(rows, rows[:, :3].argmax(1))
    trainer = Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        callbacks=(Accuracy, Stop, *callbacks),
    )
    trainer.train(
        torch.utils.data.Subset(data, range(32)),
        num_epochs=EPOCHS,
        eval_dataset=torch.utils.data.Subset(data, range(32, 46)),
        per_device_batch_size=8 // tiny.world_size(),
        gradient_accumulation_steps=2,
        gradient_clip_value=0.02,
        create_scheduler_fn=partial(
            OneCycleLR,
            max_lr=5e-2,
            epochs=TrainerPlaceholderValues.NUM_EPOCHS,
            steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        ),
        train_dataloader_kwargs={"shuffle": False, "num_workers": 0, "pin_memory": False},
        eval_dataloader_kwargs={"num_workers": 0, "pin_memory": False},
        **settings,
    )
    return trainer.run_history


history = train(Keep)
resumed = train(resume_from=f"{sys.argv[1]}/state")
names = {
    "train": "train_loss_epoch", "evaluated": "eval_loss_epoch", "accuracy": "accuracy", "rows": "rows"
}  # fmt: skip
tiny.report(
    {name: history.get_metric_values(metric) for name, metric in names.items()}
    | {f"{name}, resumed": resumed.get_metric_values(metric) for name, metric in names.items()}
)
