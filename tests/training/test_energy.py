"""Energy of a token: flits on links and FLOPs of products, counted by hand."""

from __future__ import annotations

import json

import pytest

import dysharp
from dysharp.costs.machine import Machine
from dysharp.model import layout_of
from dysharp.model.flops import MEGATRON, model_flops
from dysharp.specs import load_cluster, load_whole
from dysharp.specs.choices import choices_overridden
from dysharp.training.answers import energy_of
from dysharp.training.cost import EpTimes

PAPER = "paper-gh200-nvl32"


def test_a_token_takes_its_bits_and_its_flops() -> None:
    model, machine, layout = load_whole("deepseek-v2-lite"), Machine(load_cluster(PAPER)), layout_of("ep=4,mbs=2")
    assert model.layer is not None
    found = energy_of(model, machine, layout, 100, EpTimes(1, 1, link_flits=1e6))
    bits = 8 * 16 * 1e6 * model.layer.n_layers / 200  # of one token: a micro-batch has two sequences of 100 tokens
    assert found.links_mj_per_token == pytest.approx(bits * 5.5e-9)
    per_flop = {"fp8": 0.354, "bf16": 0.707}[model.layer.gemm_dtype]
    assert found.products_mj_per_token == pytest.approx(model_flops(model, 100, MEGATRON) * per_flop * 1e-9)
    with choices_overridden({"energy.link_pj_per_bit": 1.3}):
        assert energy_of(model, machine, layout, 100, EpTimes(1, 1, link_flits=1e6)).links_mj_per_token == pytest.approx(bits * 1.3e-9)


def test_a_dense_model_has_no_energy_of_links() -> None:
    found = energy_of(load_whole("llama3-8b"), Machine(load_cluster(PAPER)), layout_of("m=4"), 1024, None)
    assert found.links_mj_per_token == 0
    assert found.pj_per_flop == 0.707


def test_bytes_that_the_switch_saves_are_energy_that_a_step_saves() -> None:
    """The links of a step take what the Rows of its layers count, system by system."""
    done = dysharp.step("deepseek-v2-lite", PAPER, "pp=3,ep=8,m=6", sequence=32, systems=["deepep", "dysharp", "ideal"])
    links = {one.system: one.energy.links_mj_per_token for one in done.steps if one.energy}
    assert links["ideal"] == 0 < links["dysharp"] < 0.8 * links["deepep"]
    assert len({one.energy.products_mj_per_token for one in done.steps if one.energy}) == 1
    rows = [dysharp.run("deepep", model="deepseek-v2-lite", gpus=8, tokens=32, direction=way, routing="normal-cv:0.256") for way in ("fwd", "bwd")]
    flits = sum(sum(row.wire_flits.values()) for row in rows) / 8
    assert links["deepep"] == pytest.approx(flits * 128 * 26 / 32 * 5.5e-9)
    assert json.loads(json.dumps(done.to_dict()))["steps"][0]["energy"]["pj_per_bit"] == 5.5
