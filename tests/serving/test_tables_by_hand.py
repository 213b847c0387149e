"""Grids of a step's table, Little's law of pools, tokens of a GPU of a simulated layer, and what a header says of drafts: by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dysharp.api import serving_systems
from dysharp.api.serving import _header
from dysharp.serving.apart import Pool, run_pools
from dysharp.serving.engine import engine_of
from dysharp.serving.layout import serve_layout_of
from dysharp.serving.precisions import formats_of
from dysharp.serving.rates import rates_of
from dysharp.serving.step import StepTable
from dysharp.serving.work import Batch, Load, Replica
from dysharp.specs import load_cluster, load_whole


def replica(layout: str, model: str = "llama3-8b") -> Replica:
    return Replica(load_whole(model), formats_of("fp8"), serve_layout_of(layout), rates_of(load_cluster("hw-dgx-h200")))


@pytest.mark.parametrize(
    ("layout", "top", "last"), [("tp=1", 0.5, 1.0), ("tp=1", 1.0, 1.0), ("tp=1", 24.0, 24.0), ("pp=2", 2.0, 1.0), ("pp=2", 24.0, 12.0)]
)
def test_a_table_reaches_from_one_request_to_those_of_a_stage(layout: str, top: float, last: float) -> None:
    """Stages share the requests of a group. Prompts: from 256 tokens, or one prompt, to those of a step."""
    engine, load = engine_of("vllm"), Load(8.0, 1000.0, 200.0)
    found = StepTable(replica(layout), engine, load, top)
    assert (found.sizes[0], found.sizes[-1]) == pytest.approx((1.0, last))
    assert (found.tokens[0], found.tokens[-1]) == pytest.approx((256.0, max(256.0, min(engine.step_tokens, 1000.0 * top))))
    assert len(found.decodes) == len(found.sizes)


def test_requests_that_decode_are_those_that_come_while_one_is_answered() -> None:
    """Little's law of the decode pool: few users are mostly in the pool of prompts. An answer takes a step for each of its tokens."""
    load, engine = Load(6.0, 6000.0, 60.0), replace(engine_of("sglang"), mixed=False)
    prefill, decode = (Pool(StepTable(replica("tp=1"), engine, load, load.users), n) for n in (1, 1))
    done = run_pools(prefill, decode, load)
    decoding = done.batch * decode.workers * decode.table.groups
    assert decoding < 0.9 * load.users
    assert decoding == pytest.approx(done.rate / 1e6 * load.answer * done.tpot, rel=0.05)


@pytest.mark.parametrize(("decodes", "tokens"), [(1.0, 1), (4.0, 1), (9.0, 3)])
def test_a_gpu_has_its_part_of_the_tokens_of_its_group(decodes: float, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor parallel GPUs of a group share its tokens; a GPU has at least one."""
    asked: dict[str, Any] = {}

    def compare(systems: list[str], **given: Any) -> SimpleNamespace:
        asked.update(given)
        return SimpleNamespace(rows=[])

    monkeypatch.setattr(serving_systems, "compare", compare)
    point: Any = SimpleNamespace(replica=replica("dp=2,tp=4,ep=8", "deepseek-v3"))
    assert serving_systems._layers(point, ["deepep"], Batch(decodes=decodes), None, 0, None) == []
    assert (asked["tokens"], asked["model"].tokens_per_gpu, asked["gpus"]) == (tokens, tokens, 8)


@pytest.mark.parametrize(("drafts", "words"), [(0, "no speculation"), (2, "2 drafts, 1.80 tokens a step")])
def test_the_header_says_how_many_drafts_there_are(drafts: int, words: str) -> None:
    start, load = replica("tp=1"), Load(1.0, 100.0, 10.0, 1.8 if drafts else 1.0, drafts)
    request: Any = {"routing": None, "engine": "vllm", "tensor": ""}
    assert words in _header(start.model, start, load, request)[1]
