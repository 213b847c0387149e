"""Train a tiny Mixtral on a text, byte by byte, and save it, so that `dysharp capture` has a model to read.

    python examples/train_tiny_moe.py --out tiny-moe                # about a minute on one CPU core
    dysharp capture tiny-moe --text README.md -o tiny.npz

NOT realistic: a model of under a million parameters that has read some kilobytes routes far less evenly, and for other reasons, than a
trained model. It shows the way from a model to a trace; for results use the recorded traces that ship with the package.
Needs `pip install 'dysharp[torch]'`; nothing is fetched.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from transformers import MixtralConfig, MixtralForCausalLM

ROOT = Path(__file__).resolve().parents[1]
BYTES = 256


def default_text() -> str:
    """The pages of this repository, where this file lies in one."""
    pages = [page for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))) if page.is_file()]
    if not pages:
        raise SystemExit(f"found no pages in {ROOT}, expected --text FILE")
    return "\n\n".join(page.read_text(encoding="utf-8") for page in pages)


def build(experts: int, topk: int, layers: int, seed: int) -> MixtralForCausalLM:
    torch.manual_seed(seed)
    config = MixtralConfig(
        vocab_size=BYTES,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=experts,
        num_experts_per_tok=topk,
        max_position_embeddings=512,
        output_router_logits=True,  # adds the load-balancing loss
        router_aux_loss_coef=0.02,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    return MixtralForCausalLM(config)


def train(model: MixtralForCausalLM, text: str, steps: int, seconds: float, seed: int) -> float:
    """Loss after `steps` steps, or as many as `seconds` allow."""
    data = torch.tensor(list(text.encode()), dtype=torch.long)
    length, batch = 128, 8
    if len(data) <= length:
        raise SystemExit(f"found {len(data)} bytes of text, expected more than {length}")
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    begin, loss = time.perf_counter(), torch.tensor(0.0)
    for step in range(steps):
        starts = torch.randint(len(data) - length, (batch,), generator=generator)
        ids = torch.stack([data[s : s + length] for s in starts.tolist()])
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        spent = time.perf_counter() - begin
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {spent:.0f} s")
        if spent > seconds:
            break
    return float(loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--text", type=Path, help="a text file [default: the pages of this repository]")
    parser.add_argument("--out", type=Path, default=Path("tiny-moe"), help="folder to save the model in [default: tiny-moe]")
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--topk", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=90.0, help="stop after so much time [default: 90]")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # tiny matrices: more threads only wait for each other
    model = build(args.experts, args.topk, args.layers, args.seed)
    loss = train(model, args.text.read_text(encoding="utf-8") if args.text else default_text(), args.steps, args.seconds, args.seed)
    model.save_pretrained(args.out)
    n_parameters = sum(p.numel() for p in model.parameters())
    print(f"saved {n_parameters} parameters in {args.out}, loss {loss:.3f}; not realistic, see the top of this file")


if __name__ == "__main__":
    main()
