"""A LoRA adapter of peft, trained by the Accelerator on a tiny model of transformers."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy, pad

from accel import Accelerator, ParallelismConfig
from accel_state.runtime import reset_runtime

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [
    pytest.mark.engine("long"),
    pytest.mark.usefixtures("fresh_state"),
    pytest.mark.filterwarnings("ignore"),
]


class Run:
    """A base model and its adapter, being trained."""

    def __init__(self, optimizer=torch.optim.AdamW, lr=0.01, **options):
        import peft  # imports bitsandbytes, which compiles functions

        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=40, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )  # fmt: skip
        self.base = transformers.LlamaForCausalLM(config)
        adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(copy.deepcopy(self.base), adapter)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.tokens = torch.randint(3, 40, (2, 8))
        self.accelerator = Accelerator(cpu=True, **options)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer(trained, lr=lr))

    def step(self):
        loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def test_only_the_adapter_is_trained_and_peft_loads_what_it_learned(tmp_path):
    run = Run()
    losses = [run.step() for _ in range(3)]
    assert losses[2] < losses[0]
    accelerator, unwrapped = run.accelerator, run.accelerator.unwrap_model(run.model)
    unwrapped.save_pretrained(
        tmp_path,
        is_main_process=accelerator.is_main_process,
        save_function=accelerator.save,
        state_dict=accelerator.get_state_dict(run.model),
    )
    from peft import PeftModel

    loaded = PeftModel.from_pretrained(copy.deepcopy(run.base), tmp_path).eval()
    with torch.no_grad():
        wanted = run.model.eval()(input_ids=run.tokens).logits
        assert torch.equal(loaded(input_ids=run.tokens).logits, wanted)
        before = run.base.eval()(input_ids=run.tokens).logits
        assert torch.equal(unwrapped.unload()(input_ids=run.tokens).logits, before)
    assert not torch.equal(wanted, before)


def test_a_checkpoint_resumes_the_training_of_an_adapter(tmp_path):
    run = Run()
    run.step()
    run.accelerator.save_state(tmp_path / "a")
    wanted = [run.step(), run.step()]
    run.accelerator.load_state(tmp_path / "a")
    assert [run.step(), run.step()] == wanted


def padded_rows():
    """Return four sequences with padding, and other numbers of labels in each half."""
    ids = torch.randint(3, 40, (4, 8), generator=torch.Generator().manual_seed(1))
    mask, labels = torch.ones_like(ids), ids.clone()
    for row in range(4):
        padding = slice(0, row) if row % 2 else slice(8 - row, None)
        mask[row, padding] = 0
        labels[row, padding] = labels[row, : row + 1] = -100
    return [
        {"input_ids": one, "attention_mask": seen, "labels": label}
        for one, seen, label in zip(ids, mask, labels, strict=True)
    ]


def train_and_evaluate(settings):
    """Return losses of two steps and of an evaluation, norms, and the adapter."""
    reset_runtime(keep_process_group=True)
    config = ParallelismConfig(**settings) if settings else None
    run = Run(torch.optim.SGD, lr=1.0, parallelism_config=config)
    accelerator, model = run.accelerator, run.model
    loader = accelerator.prepare(torch.utils.data.DataLoader(padded_rows(), batch_size=2))

    def loss_of(batch):
        labels = batch.pop("labels", None)
        labels = batch.pop("shift_labels") if labels is None else pad(labels[:, 1:], (0, 1), value=-100)
        logits = model(**batch).logits
        assert logits.shape[:2] == labels.shape
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), (labels != -100).sum()

    losses, norms = [], []
    for batch in loader:
        summed, num = loss_of(batch)
        accelerator.backward(summed / num.clamp(min=1), num_items=num)
        norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
        run.optimizer.step()
        run.optimizer.zero_grad()
        losses.append((accelerator.reduce(summed.detach()) / accelerator.reduce(num)).item())
    model.eval()
    with torch.no_grad():
        parts = [loss_of(batch) for batch in loader]
    losses.append(
        (
            accelerator.reduce(sum(one for one, _ in parts))
            / accelerator.reduce(sum(num for _, num in parts))
        ).item()
    )
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(run.accelerator.unwrap_model(model), accelerator.get_state_dict(model))
    return losses, norms, state


def test_sequence_parallel_ranks_train_an_adapter_like_one_process(world):
    losses, norms, state = world(1).run(train_and_evaluate, {})[0]
    assert state
    each = world(2).run(train_and_evaluate, {"sp_size": 2, "sp_backend": "torch"})
    for found_losses, found_norms, _ in each:
        assert found_losses == pytest.approx(losses, rel=1e-6)
        assert found_norms == each[0][1] == pytest.approx(norms, rel=1e-5)
    torch.testing.assert_close(each[0][2], state, rtol=1e-5, atol=1e-6)
