"""Grids of a step's table, Little's law of pools, tokens of a GPU of a simulated layer, and what a header says of drafts: by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dysharp.api import serving_systems
from dysharp.api.serving import _header
from dysharp.costs.machine import machine_of
from dysharp.model.batch import StepBatch
from dysharp.model.formats import formats_of
from dysharp.serving.disaggregated import WorkerPool, run_pools
from dysharp.serving.engine import engine_of
from dysharp.serving.layout import serve_layout_of
from dysharp.serving.step import StepTable
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import load_cluster, load_whole


def replica(layout: str, model: str = "llama3-8b") -> Replica:
    return Replica(load_whole(model), formats_of("fp8"), serve_layout_of(layout), machine_of(load_cluster("hw-dgx-h200"), "serving"))


@pytest.mark.parametrize(("layout", "stages"), [("tp=1", 1), ("pp=2", 2), ("dp=2", 1)])
def test_a_step_lies_between_the_powers_of_two_around_it(layout: str, stages: int) -> None:
    """Whatever was asked for before. Prompts: from 256 tokens to those of a step. Stages and groups share the requests."""
    engine, scenario = engine_of("vllm"), Scenario(8.0, 1000.0, 200.0)
    found, fresh = StepTable(replica(layout), engine, scenario), StepTable(replica(layout), engine, scenario)
    all_requests = 24.0 * stages * found.groups
    found.decode_us(500.0)
    assert found.decode_us(all_requests) == fresh.decode_us(all_requests)
    at = [fresh.decode_us(n * stages * found.groups) for n in (16.0, 24.0, 32.0)]
    assert at[1] == pytest.approx((at[0] + at[2]) / 2)
    assert (found.tokens[0], found.tokens[-1]) == pytest.approx((256.0, found.engine.step_tokens))


def test_requests_that_decode_are_those_that_come_while_one_is_answered() -> None:
    """Little's law of the decode pool: few users are mostly in the pool of prompts. An answer takes a step for each of its tokens."""
    scenario, engine = Scenario(6.0, 6000.0, 60.0), replace(engine_of("sglang"), mixed=False)
    prefill, decode = (WorkerPool(StepTable(replica("tp=1"), engine, scenario), n) for n in (1, 1))
    done = run_pools(prefill, decode, scenario)
    decoding = done.batch * decode.workers * decode.table.groups
    assert decoding < 0.9 * scenario.concurrency
    assert decoding == pytest.approx(done.rate / 1e6 * scenario.osl * done.tpot, rel=0.05)


@pytest.mark.parametrize(("decodes", "tokens"), [(1.0, 1), (4.0, 1), (9.0, 3)])
def test_a_gpu_has_its_part_of_the_tokens_of_its_group(decodes: float, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor parallel GPUs of a group share its tokens; a GPU has at least one."""
    asked: dict[str, Any] = {}

    def compare(systems: list[str], **given: Any) -> SimpleNamespace:
        asked.update(given)
        return SimpleNamespace(rows=[])

    monkeypatch.setattr(serving_systems, "compare", compare)
    point: Any = SimpleNamespace(replica=replica("dp=2,tp=4,ep=8", "deepseek-v3"))
    assert serving_systems._layers(point, ["deepep"], StepBatch(decodes=decodes), None) == []
    assert (asked["tokens"], asked["model"].tokens_per_gpu, asked["gpus"]) == (tokens, tokens, 8)


@pytest.mark.parametrize(("drafts", "words"), [(0, "no speculative decoding"), (2, "draft tokens: 2, 1.80 tokens a step")])
def test_the_header_says_how_many_drafts_there_are(drafts: int, words: str) -> None:
    start, scenario = replica("tp=1"), Scenario(1.0, 100.0, 10.0, 1.8 if drafts else 1.0, drafts)
    request: Any = {"routing": None, "engine": "vllm", "tensor": "", "isl": 100, "osl": 10, "requests": None, "launch": None}
    assert words in "\n".join(_header(start.model, start, scenario, request))
