"""A LoRA adapter of peft, trained by the Accelerator on a tiny model of transformers."""

import copy

import pytest
import torch

from accel import Accelerator

peft = pytest.importorskip("peft", reason="needs peft")
transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.usefixtures("fresh_state"), pytest.mark.filterwarnings("ignore")]


class Run:
    """A base model and its adapter, being trained."""

    def __init__(self):
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
        self.accelerator = Accelerator(cpu=True)
        self.model, self.optimizer = self.accelerator.prepare(model, torch.optim.AdamW(trained, lr=0.01))

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
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(run.base), tmp_path).eval()
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
