"""Fine-tune a small part of a model: LoRA, and QLoRA with a 4-bit base model.

    pip install transformers peft bitsandbytes
    python docs/examples/lora.py
    accel launch --cpu --num_processes 2 docs/examples/lora.py
    accel launch --use_fsdp --fsdp_version 2 --cpu --num_processes 2 docs/examples/lora.py
    python docs/examples/lora.py --quantize

The base model learns to count on (4 5 6 7 …). The adapters of PEFT (Hu et al. 2021, https://arxiv.org/abs/2106.09685)
make it count in threes (4 7 10 13 …), while its weights stay unchanged. With `--quantize` these are read from the
checkpoint layer by layer and quantized to 4-bit (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314).
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

from accel import Accelerator, init_empty_weights, load_checkpoint_in_model
from accel.utils import BnbQuantizationConfig, load_and_quantize_model, set_seed

NUMBERS = 32
LENGTH = 12


def base_model() -> LlamaForCausalLM:
    """Return a small language model of 32 words with random weights."""
    config = LlamaConfig(
        vocab_size=NUMBERS, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def counting(step: int, count: int) -> TensorDataset:
    """Return sequences that count in steps of ``step``, from anywhere, around the end."""
    starts = torch.randint(NUMBERS, (count, 1), generator=torch.Generator().manual_seed(step))
    return TensorDataset((starts + step * torch.arange(LENGTH)) % NUMBERS)


def train(accelerator: Accelerator, model: nn.Module, step: int, *, epochs: int, lr: float) -> nn.Module:
    """Train the trainable parameters of ``model`` to count in steps of ``step``; return it prepared."""
    loader = DataLoader(counting(step, 512), batch_size=16, shuffle=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(epochs):
        for (numbers,) in loader:
            loss = model(input_ids=numbers, labels=numbers).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), "mean").item()
        accelerator.print(f"counting by {step}, epoch {epoch}: loss {mean:.3f}")
    return model


@torch.no_grad()
def accuracy(accelerator: Accelerator, model: nn.Module, step: int) -> float:
    """Return how many numbers after the second are predicted correctly, of all 32 sequences with this step."""
    numbers = (torch.arange(NUMBERS).unsqueeze(1) + step * torch.arange(LENGTH)) % NUMBERS
    numbers = numbers.to(accelerator.device)
    guesses = model(input_ids=numbers).logits[:, 1:-1].argmax(-1)
    return (guesses == numbers[:, 2:]).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune adapters of a model.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8, help="of the adapters")
    parser.add_argument("--quantize", action="store_true", help="quantize the base model to 4-bit")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/lora"))
    args = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    base = train(accelerator, base_model(), 1, epochs=args.epochs, lr=3e-3)
    base.eval()
    accelerator.print(
        f"base: counts on {accuracy(accelerator, base, 1):.2f}, in threes {accuracy(accelerator, base, 3):.2f}"
    )
    accelerator.save_model(base, args.output_dir / "base")
    accelerator.wait_for_everyone()  # rank 0 writes, and every rank reads it below
    accelerator.free_memory(base)

    if args.quantize:
        with init_empty_weights():  # the weights equal the checkpoint
            model = base_model()
        four_bits = BnbQuantizationConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", torch_dtype=torch.float32
        )
        model = load_and_quantize_model(
            model, four_bits, args.output_dir / "base", device_map={"": accelerator.device}
        )
    else:
        model = base_model().to(accelerator.device)
        load_checkpoint_in_model(model, args.output_dir / "base")  # `base` itself may be sharded
    num_bytes, counts = model.get_memory_footprint(), accuracy(accelerator, model, 1)
    accelerator.print(f"base model to adapt: {num_bytes:,} bytes, counts on {counts:.2f}")
    settings = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear")
    model = get_peft_model(model, settings)
    trained, total = model.get_nb_trainable_parameters()
    accelerator.print(f"adapters: {trained:,} of {total:,} parameters are trained")
    model = train(accelerator, model, 3, epochs=args.epochs, lr=1e-2)
    model.eval()
    accelerator.print(f"with adapters: in threes {accuracy(accelerator, model, 3):.2f}")
    accelerator.unwrap_model(model).save_pretrained(  # on every rank: sharded adapters are gathered
        args.output_dir / "adapters",
        is_main_process=accelerator.is_main_process,
        state_dict=accelerator.get_state_dict(model),
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
