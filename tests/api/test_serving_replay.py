"""`serve --requests`: the answer comes first, its numbers fit together, wrong texts are refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dysharp
from dysharp.api.serving_replay import _failures_of, _pools_of, _tiers_of
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.costs.machine import machine_of
from dysharp.model.formats import formats_of
from dysharp.serving.layout import serve_layout_of
from dysharp.serving.replay.fleet import Failure, TierSize
from dysharp.serving.work import Replica
from dysharp.specs import load_cluster, load_whole

ASKED = "rate=6,isl=1000,osl=100,shared=200,n=300"


def test_the_answer_of_a_replay() -> None:
    done = dysharp.serve("qwen3-30b", gpus=4, requests=ASKED, price=2.0, layouts=["tp=1", "tp=2"], slo="ttft=1s,tpot=20ms")
    assert sorted(one.layout for one in done.replays) == ["2 x TP2", "4 x TP1"]
    for one in done.replays:
        run = one.run
        assert run.gpus == 4
        assert one.goodput == pytest.approx(one.kept * run.rate)
        assert one.per_million == pytest.approx(2.0 * 4 / 3600 / run.output_rate * 1e6)
        assert run.hit == pytest.approx(192 / 1200 * 0.9999, rel=0.05)
    first = done.sentences()
    assert first[0].startswith(f"Replay, {done.replays[0].layout}: ")
    assert "keep a TTFT of 1000 ms and TPOT of 20 ms" in first[0]
    assert "P99: TTFT" in first[1]
    assert "per million output tokens" in first[2]
    assert json.loads(json.dumps(done.to_dict()))["replays"][0]["ttft_ms"]["p99"] == pytest.approx(done.replays[0].run.ttft.p99 / 1e3)
    assert dysharp.serve("qwen3-30b", gpus=4, layouts=["tp=1"]).replays == ()


def test_named_layouts_are_replayed_whatever_the_formula_says() -> None:
    """TP1 has 70 ms to a first token: it is beyond the limit of the search, and was left out."""
    done = dysharp.serve("qwen3-30b", gpus=4, requests="rate=1,isl=4000,osl=20,n=20", layouts=["tp=1", "tp=4"], slo="ttft=50ms,tpot=20ms")
    assert [point.replica.layout.tp for point in done.best] == [4]
    assert [one.layout for one in done.replays] == ["1 x TP4", "4 x TP1"]


def test_pools_a_failure_and_a_plot(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 100 * i, "input_length": 900, "output_length": 20, "hash_ids": [0, i + 1]} for i in range(60)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    words = ["serve", "qwen3-30b", "--gpus", "3", "--layouts", "tp=1", "--requests", str(trace)]
    pools = ["--pools", "1:tp=1;2:tp=1", "--fail", "0@1+2", "--tiers", "host=50@20", "--json", "--plot", str(tmp_path / "a.svg")]
    ran = CliRunner().invoke(cli, [*words, *pools])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)["replays"][0]
    assert (found["layout"], found["gpus"], found["requests"]) == ("1 x TP1 + 2 x TP1", 3, 60)
    assert "waiting" in (tmp_path / "a.svg").read_text()
    page = CliRunner().invoke(cli, [*words, "--report", str(tmp_path / "a.html")])
    assert page.exit_code == 0, page.output
    assert page.stdout.startswith("Replay, 3 x TP1: ")
    assert "<h2>Replay</h2>" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(("part", "more", "lost"), [("refused", {}, 25), ("never end", {"fail": "0@0.001"}, 50)])
def test_requests_that_fail_keep_no_limit(tmp_path: Path, part: str, more: dict[str, str], lost: int) -> None:
    """Half of the prompts are longer than the model's context, or the only replica stops for ever."""
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 100 * i, "input_length": 900 if i % 2 else 10**6, "output_length": 20, "hash_ids": []} for i in range(50)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    (one,) = dysharp.serve("qwen3-30b", gpus=1, layouts=["tp=1"], requests=str(trace), **more).replays  # type: ignore[arg-type]
    assert len(one.run.columns["end"]) == 50 - lost
    assert one.kept == 1 - lost / 50
    assert one.goodput == pytest.approx(one.run.rate)
    first, *others = one.sentences()
    assert first.startswith(f"Replay, 1 x TP1: {1 - lost / 50:.1%} of 50 requests (")
    assert any(part in line for line in others)


@pytest.mark.parametrize("option", [{"router": "prefix"}, {"tiers": "host=200@50"}, {"pools": "1:tp=1;1:tp=1"}, {"fail": "0@60"}, {"price": 2.0}])
def test_an_option_of_a_replay_without_requests_is_refused(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(ConfigError, match=f"found --{name} without --requests, expected both"):
        dysharp.serve("qwen3-30b", gpus=2, layouts=["tp=1"], **option)


def test_prefill_workers_draft_as_one_server_does() -> None:
    """Their MTP layer fills its cache for every token of a prompt (SGLang: draft extend): first tokens came as early as without drafts."""
    asked: dict[str, Any] = {"requests": "users=1,n=4,isl=8000,osl=4", "slo": "ttft=9s,tpot=99ms"}
    pools: dict[str, Any] = {"cluster": "hw-dgx-h200-x2", "gpus": 16, "pools": "1:tp=8;1:tp=8"}
    longer = []
    for where in (pools, {"cluster": "hw-dgx-h200", "layouts": ["tp=8"]}):
        plain, drafted = (dysharp.serve("deepseek-v3", **where, **asked, mtp=mtp).replays[0].run.ttft.p50 for mtp in (None, 1))
        longer.append(drafted - plain)
    assert longer[0] == pytest.approx(longer[1], rel=0.01)
    assert longer[0] > 5e3


def test_pools_have_no_more_gpus_than_the_machine() -> None:
    with pytest.raises(ConfigError, match="pools: found 12 GPUs in 1:tp=4;1:tp=8, expected at most 8"):
        dysharp.serve("qwen3-30b", "hw-dgx-h100", layouts=["tp=4"], requests="rate=1,n=1,isl=9,osl=2", pools="1:tp=4;1:tp=8")


def test_texts_of_pools_tiers_and_failures() -> None:
    start = Replica(load_whole("qwen3-30b"), formats_of("fp8"), serve_layout_of("tp=1"), machine_of(load_cluster("hw-dgx-h200"), "serving"))
    assert [(pool.number, pool.replica.layout.name) for pool in _pools_of("2:tp=4;1:dp=8,ep=8", start)] == [(2, "TP4"), (1, "DP8 EP8")]
    assert _tiers_of("host=200@50,disk=2000@6.5") == [TierSize("host", 200, 50), TierSize("disk", 2000, 6.5)]
    assert _failures_of("0@60+30,1@5") == [Failure(0, 60, 30), Failure(1, 5)]
    for read, text, said in (
        (lambda text: list(_pools_of(text, start)), "2:tp=4", "pools: found '2:tp=4', expected N:LAYOUT;N:LAYOUT"),
        (lambda text: list(_pools_of(text, start)), "2:tp=3;1:tp=1", "pools: TP3: 32 heads do not divide by TP3"),
        (_tiers_of, "host=200", "tiers: found 'host=200', expected NAME=GB@GBps"), (_tiers_of, "host=0@1", "tiers: found"),
        (_failures_of, "0", "fail: found '0', expected REPLICA@SECONDS"), (_failures_of, "x@3", "fail: found"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            read(text)
