"""`dysharp serve`: the answer, limits, refusals."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dysharp import serve
from dysharp.api.arguments import Slo
from dysharp.api.serving import part_shares, published, slo_of
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.model.formats import formats_of
from dysharp.serving.answers import limit_of
from dysharp.serving.search import EQUAL, ranked
from dysharp.specs import load_cluster, load_whole


def test_two_nodes_of_h200() -> None:
    done = serve("deepseek-v3", "hw-dgx-h200-x2", engine="sglang", slo=Slo(tpot=50.0), users=1000)
    first = done.best[0]
    assert first.served.tpot <= 50e3
    assert all(first.tokens_per_gpu >= (1 - EQUAL) * point.tokens_per_gpu for point in done.best)
    assert done.gpus_for_users is not None
    assert done.gpus_for_users * first.scenario.concurrency / first.replica.layout.gpus >= 1000
    assert any("do not" in one.reason or "GB" in one.reason for one in done.rejected)
    assert json.loads(json.dumps(done.to_dict()))["best"][0]["layout"] == first.replica.layout.name
    speeds = [(point.per_user, point.tokens_per_gpu) for point in done.front]
    assert speeds == sorted(speeds, key=lambda pair: -pair[0])
    assert [t for _, t in speeds] == sorted(t for _, t in speeds)


def test_a_dense_model_has_no_experts_in_its_header() -> None:
    said = "steady state of a fixed number of users; no prefix cache; no speculative decoding"
    assert said in serve("llama3-8b", "hw-dgx-h100", gpus=1).header


@pytest.mark.slow
def test_a_whole_rack_has_wide_layouts() -> None:
    began = time.process_time()
    done = serve("deepseek-v3", "hw-gb200-nvl72", gpus=72, precision="fp4", engine="trtllm")
    names = {point.replica.layout.name for point in done.points}
    assert {"TP8", "DP72 EP72", "TP8 DP9 EP72"} <= names
    assert len(done.points) > 12 * 12
    assert time.process_time() - began < 30  # the bar: 60 s of two cores


def test_users_are_tried_up_to_the_limit() -> None:
    """One user more breaks the limit, or does not fit; so layouts are compared at the limit, not at powers of two."""
    done = serve("deepseek-v3", "hw-dgx-h200", engine="sglang", slo=Slo(tpot=45.0), layouts=["tp=8", "tp=4,dp=2,ep=8"])
    for best in done.best:
        assert best.served.tpot <= 45e3
        assert best.at(best.scenario.concurrency + 1).served.tpot > 45e3 or best.scenario.concurrency >= best.memory.requests * best.replica.layout.dp


def test_every_answer_has_an_error_bar_and_says_what_was_not_measured() -> None:
    done = serve("kimi-k2", "hw-gb200-nvl72", gpus=16, precision="fp4", engine="trtllm", isl=50000, slo=Slo(20000.0, 100.0), layouts=["dp=16,ep=16"])
    words = " ".join(done.trust())
    for part in ("Error bar", "model kimi-k2", "EP16", "ISL 50000"):
        assert part in words
    assert "Outside" not in " ".join(serve("minimax-m2.5", "hw-dgx-h200", layouts=["tp=8"]).trust())
    low, high = done.to_dict()["best"][0]["tpot_ms_90"]
    assert low < done.best[0].served.tpot / 1e3 < high


def test_questions_of_one_screen() -> None:
    done = serve(
        "deepseek-v3", "hw-dgx-h200-x2", engine="sglang", layouts=["tp=8,ep=8", "dp=8,ep=8", "tp=4,dp=2,ep=8"], mtp=1, acceptance=0.8,
        routing="lognormal:0.65", what_if=True, users=300,
    )  # fmt: skip
    text = "\n".join((*done.sentences(), *done.advice()))
    speculative = "Speculative decoding (1 draft token a step) pays above"
    for part in ("Disaggregated prefill and decode", "300 users need", "room for", speculative, "EPLB with 1 spare slot", "would help"):
        assert part in text
    assert [one.name for one in done.what_ifs][-1] == "a GPU dies"
    plain = json.loads(json.dumps(done.to_dict()))
    assert plain["disaggregated"]["tpot_ms"] == plain["apart"]["tpot_ms"] <= 50
    assert len(plain["what_ifs"]) == len(done.what_ifs)


@pytest.mark.parametrize(
    ("quant", "asked", "weight", "kv"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, {}, 0.5 + 2.5 / 128, "bf16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, {}, 0.5 + 2 / 32, "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, {}, 1.0, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, {"kv": "bf16"}, 1.0, "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, {"precision": "fp8-tensor"}, 1.0, "bf16"),
    ],
)
def test_a_checkpoint_says_its_scales_and_its_cache(tmp_path: Path, quant: dict[str, Any], asked: dict[str, Any], weight: float, kv: str) -> None:
    """Llama-3.1-8B: 6.98 G parameters of linears as the config says, embedding, head and norms in BF16; 131,072 bytes of a token in BF16."""
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "vocab_size": 128256, "quantization_config": quant}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    memory = serve(str(tmp_path), "hw-dgx-h100", gpus=1, layouts=["tp=1"], **asked).points[0].memory
    linears, rest = 32 * (4096 * 6144 + 4096**2 + 3 * 4096 * 14336), 2 * 128256 * 4096 + 65 * 4096
    assert memory.weights == pytest.approx(linears * weight + rest * 2)
    assert memory.token == pytest.approx(131_072 / (1 + (kv == "fp8")))


def test_a_gpu_without_fp8_keeps_its_cache_in_bf16() -> None:
    """TensorRT-LLM takes FP8 for the cache of NVFP4 checkpoints, but no FP8 on Ampere (its support matrix), and does not start with it there."""
    for cluster, kv in (("hw-dgx-a100", "bf16"), ("hw-dgx-h100", "fp8")):
        done = serve("llama3-8b", cluster, gpus=1, layouts=["tp=1"], engine="trtllm", precision="fp4", slo="ttft=9s,tpot=99ms")
        assert (done.formats["kv"], done.launch() != "") == (kv, True)
    for engine, tried in (("vllm", True), ("trtllm", False)):  # what the engine does not start is no choice
        changes = serve("llama3-8b", "hw-dgx-a100", gpus=1, layouts=["tp=1"], engine=engine, slo="ttft=9s,tpot=99ms", what_if=True).what_ifs
        assert ("KV cache in FP8" in [one.name for one in changes]) == tried


def test_a_point_on_its_own_replica_is_itself() -> None:
    """SGLang's groups share the tokens of a step: their part was divided once more for the interval of a learned machine."""
    point = serve("qwen3-30b", "hw-dgx-h200", engine="sglang", layouts=["dp=8,ep=8"]).best[0]
    assert (same := point.on(point.replica)) is not None
    assert (same.served, same.memory) == (point.served, point.memory)


def test_one_user_needs_a_replica() -> None:
    """A user needs, users need; and a replay says which requests it measures (`replay.report`: WARM_UP, FEW)."""
    done = serve("qwen3-30b", "hw-dgx-h200", gpus=2, layouts=["tp=2"], users=1, requests="users=2,n=20,isl=100,osl=10")
    text = "\n".join(done.sentences())
    assert "1 user needs 2 GPUs: 1 replica with" in text
    assert "With one replica lost 0 of 1 user stays within the limits; 4 GPUs lose none." in text
    assert "replay: the first tenth of 20 requests or more warms the replicas up and is not measured, the others are" in "\n".join(done.header)
    assert done.replays[0].run.measured == 18


def test_recorded_routing() -> None:
    """Decoding of GPT-OSS 20B was recorded: the busiest of four GPUs has a tenth more rows than the mean, and EPLB evens them."""
    done = serve("gpt-oss-20b", "hw-dgx-h200", gpus=4, precision="mxfp4", layouts=["dp=4,ep=4"], routing="trace:gpt-oss-20b")
    busiest = [slot.eplb.busiest for slot in done.slots]
    assert busiest[0] > 1.08
    assert busiest[1] < 1.03
    assert "as in trace:gpt-oss-20b" in " ".join(done.header)


def test_of_about_equal_layouts_the_smaller_replica_goes_first() -> None:
    done = serve("deepseek-v3", "hw-dgx-h200-x2", layouts=["tp=8,ep=8", "tp=8,ep=8,pp=2"])
    small, large = sorted(done.best, key=lambda point: point.replica.layout.gpus)
    for part, first in ((0.997, small), (0.98, large)):  # of the tokens per second of the larger one
        answers = small.served.rate / small.tokens_per_gpu * large.tokens_per_gpu * part
        found = replace(done, best=tuple(ranked([large, replace(small, served=replace(small.served, rate=answers))])))
        assert found.best[0].replica.layout == first.replica.layout
        assert ("0.3 % ahead with replicas of 16 GPUs: within 1 % smaller replicas go first" in str(found)) == (part > 0.99)


def test_eplb_names_its_base() -> None:
    """The layout with its stages, at the users of the headline: without EPLB it is the headline."""
    done = serve("deepseek-v3", "hw-dgx-h200-x2", layouts=["tp=8,ep=8,pp=2"], routing="loads:deepseek-v2-lite")
    best = done.best[0]
    assert done.slots[0].tokens_per_gpu == pytest.approx(best.tokens_per_gpu, rel=0.01)
    lines = [line for line in done.advice() if "EPLB" in line]
    assert lines[0].startswith(f"Without EPLB TP8 EP8 PP2 at a concurrency of {best.scenario.concurrency:g} per replica: ")
    assert f"tokens/s per GPU ({100 * (done.slots[1].tokens_per_gpu / done.slots[0].tokens_per_gpu - 1):+.0f} %)" in lines[1]


def test_a_picture_and_a_page(tmp_path: Path) -> None:
    picture, page = tmp_path / "front.svg", tmp_path / "serving.html"
    arguments = ["serve", "minimax-m2.5", "--cluster", "hw-dgx-h200", "--layouts", "tp=8;tp=4;dp=8,ep=8", "--what-if"]
    found = CliRunner().invoke(cli, [*arguments, "--plot", str(picture), "--report", str(page)])
    assert found.exit_code == 0, found.output
    assert "Error bar" in found.output
    assert "<svg" in picture.read_text()
    text = page.read_text()
    for part in ("Start it", "Front", "What if", "<svg", "--what-if", "Error bar", "Content-Security-Policy"):
        assert part in text
    assert "<script" not in text
    wrong = CliRunner().invoke(cli, [*arguments, "--report", str(tmp_path / "page.pdf")])
    assert wrong.exit_code
    assert "expected .html" in str(wrong.exception) + wrong.output


@pytest.mark.parametrize("asked", [["llama3-405b"], ["qwen3-30b", "--layouts", "tp=8", "--requests", "rate=4,n=9,isl=60000"]])
def test_a_picture_of_nothing(asked: list[str], tmp_path: Path) -> None:
    """No layout fits, or every request is longer than the model's context."""
    picture = tmp_path / "none.svg"
    found = CliRunner().invoke(cli, ["serve", *asked, "--cluster", "hw-dgx-h100", "--plot", str(picture)])
    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert "<svg" in picture.read_text()


def test_what_does_not_fit_says_why() -> None:
    done = serve("deepseek-v3", "hw-dgx-h100", precision="bf16", isl=1000, osl=10)
    assert not done.points
    assert "GB" in done.sentences()[0]
    slow = serve("llama3-70b", "hw-dgx-h200", slo=Slo(tpot=0.01), layouts=["tp=8"])
    assert slow.sentences()[0].startswith("No layout keeps")


@pytest.mark.parametrize("text", ["ttft", "ttft=2", "tpot=-1ms", "tpot=xs", "speed=3s"])
def test_bad_limits(text: str) -> None:
    with pytest.raises(ConfigError, match="slo: found"):
        slo_of(text)


def test_limits() -> None:
    assert slo_of("ttft=2s,tpot=50ms") == Slo(2000.0, 50.0)
    assert slo_of("") == Slo()


def test_wrong_input() -> None:
    with pytest.raises(ConfigError, match="engine"):
        serve(engine="vlm")
    with pytest.raises(ConfigError, match="osl"):
        serve(osl=1)
    with pytest.raises(ConfigError, match="gpu"):
        serve(cluster="paper-gh200-nvl32")


def test_nics_that_are_not_counted_are_named() -> None:
    """A step is a closed form of equal NICs."""
    base = load_cluster("hw-dgx-h100-x2")
    assert base.scale_out is not None
    slow, lost = (replace(base, scale_out=replace(base.scale_out, **one)) for one in ({"slow_nics": ((3, 0.1),)}, {"lost_nics": (3,)}))
    assert "slow and lost NICs of the network are not counted" in serve("llama3-8b", slow, layouts=["tp=1"]).header
    with pytest.raises(ConfigError, match="found GPU 3 without a NIC"):
        serve("llama3-8b", lost, layouts=["tp=1"])


def test_more_memory_never_serves_fewer() -> None:
    """A time depends on the number of requests, not on how many fit."""
    small, large = (serve("deepseek-v3", f"hw-dgx-h200-x2,hbm_GB={size}", layouts=["tp=8,ep=8", "dp=8,ep=8"]) for size in (141, 200))
    one, other = (next(p for p in found.points if p.replica.layout.tp == 8).at(60.0) for found in (small, large))
    assert one.served.tpot == other.served.tpot
    assert large.disaggregated is not None
    assert small.disaggregated is not None
    assert large.disaggregated.tokens_per_gpu >= small.disaggregated.tokens_per_gpu


def test_a_step_that_waits_for_the_host_says_so() -> None:
    found = serve("qwen3-235b", "hw-dgx-b200", isl=1024, osl=1024, layouts=["tp=8"])
    assert limit_of(found.best[0]) == "host"
    assert part_shares(found.best[0])["host"] > 0.2
    assert sum(part_shares(found.best[0]).values()) == pytest.approx(1)
    assert "Limit: TPOT of 50 ms, above all the engine's work on the host" in str(found)


def test_users_need_the_fewest_gpus_of_all_layouts() -> None:
    assert serve("qwen3-30b", "hw-dgx-h200", users=100).gpus_for_users == serve("qwen3-30b", "hw-dgx-h200", users=100, gpus=1).gpus_for_users == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"mtp": 1}, "serve: mtp: found 1, expected 0: qwen3-30b has no MTP layers"),
        ({"gpus": 0}, "found 0 GPUs"),
        ({"isl": 1 << 25}, "isl: found 33554432, expected 1 to 16777216"),
        ({"slo": "ttft=2s,ttft=1s"}, "slo: found ttft twice"),
        ({"acceptance": 1.0}, "serve: acceptance: found 1.0"),
        ({"model": "llama3-8b", "routing": "uniform"}, "found --routing, expected none: llama3-8b has no experts"),
        ({"model": "llama3-8b", "ep_system": "deepep"}, "found --ep-system, expected none"),
    ],
)
def test_wrong_wishes_are_refused_in_one_line(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve(**{"model": "qwen3-30b", "cluster": "hw-dgx-h200", **asked})


def test_a_model_is_served_as_it_was_published() -> None:
    for name, weights in (("gpt-oss-120b", "mxfp4"), ("deepseek-v3", "fp8-block"), ("kimi-k2", "fp8-block"), ("qwen3-235b", "bf16")):
        assert formats_of(published(load_whole(name))).experts == weights
    done = serve("gpt-oss-120b", "hw-dgx-b200", gpus=1, isl=1024, osl=1024)
    assert done.best
    assert done.header[1] == "formats: weights mxfp4 (experts), bf16; products bf16; KV bf16; state bf16; rows bf16 out, bf16 back"
    assert done.to_dict()["formats"]["weights"] == {"attention": "bf16", "experts": "mxfp4", "dense": "bf16", "head": "bf16"}
    asked = {"gpus": 1, "isl": 1024, "osl": 1024, "layouts": ["tp=1"]}
    switched = serve("deepseek-v3", "hw-gb200-nvl72", gpus=16, precision="nvfp4", layouts=["dp=16,ep=16"], slo="ttft=9s,tpot=1s")
    assert switched.header[1].endswith("rows nvfp4 out, bf16 back")
    assert switched.to_dict()["formats"]["sent"] == "nvfp4"
    for engine, cluster, products in (("trtllm", "hw-dgx-b200", "fp8"), ("sglang", "hw-dgx-b200", "fp8"), ("trtllm", "hw-dgx-h200", "bf16")):
        cast = serve("gpt-oss-120b", cluster, engine=engine, **asked)  # W4A8_MXFP4_MXFP8 from SM 100 on, which the same checkpoint holds
        assert (cast.formats["products"]["experts"], [line for line in cast.starting() if "holds" in line]) == (products, [])
    named = serve("gpt-oss-120b", "hw-dgx-b200", precision="mxfp4", **asked)
    assert named.best[0].tokens_per_gpu == serve("gpt-oss-120b", "hw-dgx-b200", **asked).best[0].tokens_per_gpu


def test_parts_of_a_precision_change_a_replica() -> None:
    asked: dict[str, Any] = {"gpus": 8, "layouts": ["dp=8,ep=8"], "isl": 1024, "osl": 256}
    plain, wide, kv = (serve("deepseek-v3", "hw-dgx-h200", precision=name, **asked) for name in ("fp8", "fp8,sent=bf16", "fp8,kv=bf16"))
    at = [one.points[0].at(64).served.tpot for one in (plain, wide)]
    assert at[0] < at[1]
    assert kv.formats["kv"] == "bf16"
    assert kv.points[0].memory.requests <= plain.points[0].memory.requests


@pytest.mark.parametrize(
    ("asked", "given", "left_out"),
    [
        (("deepseek-v3", "tp=8", 4096), {"precision": "int4"}, "narrower weights"),
        (("qwen3-30b", "tp=2", 8000), {"kv": "fp8"}, "an FP8 cache"),
        (("llama3-8b", "tp=1", 4000), {"engine": "trtllm", "cluster": "hw-dgx-a100"}, "an FP8 cache"),
    ],
)
def test_what_no_narrower_format_helps_is_no_advice(asked: tuple[str, str, int], given: dict[str, str], left_out: str) -> None:
    """Nor is what the engine refuses: TensorRT-LLM has no FP8 cache on Ampere."""
    model, layout, isl = asked
    for more in (given, {key: value for key, value in given.items() if key == "cluster"}):
        done = serve(model, layouts=[layout], isl=isl, osl=isl // 4, slo=Slo(tpot=50.0), **{"cluster": "hw-dgx-h200"} | more)  # type: ignore[arg-type]
        (said,) = (line for line in done.sentences() if line.startswith("Limit:"))
        assert (left_out in said) == (more is not given), said
