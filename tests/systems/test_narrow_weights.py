"""Layers of checkpoints with 4-bit weights: what memory reads, how fast products are, and what is said of it."""

from dataclasses import replace

import pytest

import dysharp
from dysharp.costs.gemm import ELEMENT_BYTES, narrow_bytes
from dysharp.costs.machine import machine_of
from dysharp.model.formats import FORMATS
from dysharp.specs import load_cluster, load_model

H100 = load_cluster("hw-dgx-h100")
NARROW = load_model("gpt-oss-120b")
WIDE = replace(NARROW, checkpoint="")


@pytest.mark.parametrize(
    ("checkpoint", "products", "held"),
    [("", "bf16", 2.0), ("mxfp4", "bf16", FORMATS["mxfp4"].weight_bytes), ("int4-experts", "bf16", FORMATS["int4"].weight_bytes),
     ("mxfp4-fp8", "fp8", FORMATS["mxfp4"].weight_bytes), ("fp8-block", "fp8", 1.0), ("fp8", "bf16", 1.0), ("bf16", "fp8", 1.0)],
)  # fmt: skip
def test_memory_holds_the_narrower_weights(checkpoint: str, products: str, held: float) -> None:
    model = replace(NARROW, checkpoint=checkpoint, gemm_dtype=products)
    assert (narrow_bytes(model) or ELEMENT_BYTES[products]) == held
    assert narrow_bytes(model, "bwd") is None


@pytest.mark.parametrize(("tokens", "low", "high"), [(32, 0.4, 0.75), (2048, 1.4, 2.4)])
def test_few_tokens_gain_what_memory_reads_and_many_lose_what_registers_widen(tokens: int, low: float, high: float) -> None:
    """An engine's kernel multiplies 4-bit weights on an H100 at two fifths of the rate; with few tokens weights are what takes time."""
    times = [dysharp.run("deepep", model=model, cluster=H100, tokens=tokens).time_us for model in (NARROW, WIDE)]
    assert low < times[0] / times[1] < high


def test_the_layer_and_a_served_model_multiply_alike() -> None:
    """Many rows: the GEMMs of the simulated layer take what the machine of serving says, within 15 %."""
    tokens, machine, held = 2048, machine_of(H100, "serving"), narrow_bytes(NARROW)
    even = replace(NARROW, routing="uniform")
    run = dysharp.run("ideal", model=even, cluster=H100, tokens=tokens)
    rows, groups, h, i = tokens * even.topk * 8 / even.n_experts, even.n_experts / 8, even.hidden, even.expert_hidden
    served = sum(machine.gemm(rows, n, k, "bf16", groups, weight_bytes=held) for n, k in ((2 * i, h), (h, i)))
    assert run.time_us == pytest.approx(served, rel=0.15)


def test_training_and_paper_machines_have_no_widening() -> None:
    assert machine_of(load_cluster("paper-dgx-h100"), "serving").widening == 1.0
    back = [dysharp.run("deepep", model=model, cluster=H100, tokens=64, direction="bwd").time_us for model in (NARROW, WIDE)]
    assert back[0] == back[1]


def test_the_answer_says_what_it_reads() -> None:
    said = "\n".join(dysharp.run("deepep", model=NARROW, cluster=H100, tokens=16).header)
    assert "weights: mxfp4 in memory, widened as they are read; products bf16" in said
    assert "warning: the checkpoint holds" not in said
    assert "warning: the checkpoint holds" in "\n".join(dysharp.run("deepep", model=NARROW, cluster=H100, tokens=16, direction="bwd").header)
