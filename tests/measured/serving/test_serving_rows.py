"""Serving runs: the reader, what a row serves, predictions of some rows, groups of layouts."""

import pytest

from dysharp.api.run_validation import validate_serving
from dysharp.base.errors import ConfigError
from dysharp.measured.measurements import Unsupported
from dysharp.measured.serving.predictions import TPOT, ServingCase, fastest_layouts, predict_row
from dysharp.measured.serving.setting import ServingRow, setting_of
from dysharp.specs import load_whole

HEAD = (
    "id,where,quality,engine,engine_version,model,hardware,mode,gemm_quant,moe_quant,isl,osl,concurrency,tp,attn_dp,moe_tp,moe_ep,measured,"
    "ttft_ms,tpot_ms"
)
LINE = "a,InferenceX,A,vllm,0.19.0,MiniMaxAI/MiniMax-M2.5,h200_sxm,agg,fp8,fp8,1024,1024,{users},8,1,8,1,2026-03-27,{ttft},{tpot}"


@pytest.fixture(scope="module")
def rows() -> dict[str, ServingRow]:
    return {row.id: row for row in ServingRow.read()}


@pytest.mark.parametrize(
    ("name", "within"),
    [("in0397", 15), ("in0402", 15), ("in0399", 15), ("in0400", 25), ("in0283", 20), ("in0284", 20), ("in0293", 15), ("in0891", 15), ("in0671", 25)],
)
def test_rows_of_the_worked_cases(rows: dict[str, ServingRow], name: str, within: float) -> None:
    """Rows that the worked cases name: MiniMax on H200, DeepSeek-V3 on H200, one of replicas, one with prefill apart."""
    error = predict_row(rows[name]).error(TPOT)
    assert error is not None
    assert abs(error) < within


def test_every_row_has_a_setting_or_a_reason(rows: dict[str, ServingRow]) -> None:
    known = 0
    for row in rows.values():
        try:
            setting_of(row)
            known += 1
        except Unsupported as error:
            assert str(error)
    assert known >= 0.95 * len(rows)


@pytest.mark.parametrize(
    ("model", "experts"), [("openai/gpt-oss-120b", "mxfp4"), ("deepseek-ai/DeepSeek-V3", "fp8-block"), ("Qwen/Qwen3-32B", "bf16")]
)
def test_a_row_without_a_precision_has_the_published_checkpoint(model: str, experts: str) -> None:
    line = LINE.format(users=1, ttft=100, tpot=10).replace("fp8,fp8", ",").replace("MiniMaxAI/MiniMax-M2.5", model)
    (row,) = ServingRow.from_csv(f"{HEAD}\n{line}\n", "f")
    assert setting_of(row).replica.formats.experts == experts


def test_what_a_row_serves(rows: dict[str, ServingRow]) -> None:
    own = setting_of(rows["in0889"])  # 448 users, 56 of each group, experts on the same GPUs
    assert own.replica.layout.name == "DP8 EP8"
    assert (own.scenario.concurrency, own.scenario.isl) == (448, 4000)
    copies = setting_of(rows["in0891"])
    assert (copies.replica.layout.name, copies.scenario.concurrency) == ("TP2", 13)
    pools = setting_of(rows["in0671"])
    assert pools.decode is not None
    assert (pools.workers, pools.replica.layout.name, pools.decode.layout.name) == ((5, 1), "DP8 EP8", "DP32 EP32")
    assert pools.scenario.isl == pytest.approx(0.9 * 8192)


@pytest.mark.parametrize(
    ("name", "model"),
    [("deepseek-ai/DeepSeek-R1", "deepseek-v3"), ("MiniMaxAI/MiniMax-M2.5", "minimax-m2.5"), ("openai/gpt-oss-120b", "gpt-oss-120b"),
     ("moonshotai/Kimi-K2.5", "kimi-k2"), ("zai-org/GLM-5-FP8", "glm-5"), ("meta-llama/Llama-3.3-70B-Instruct", "llama3-70b")],
)  # fmt: skip
def test_names_of_models(name: str, model: str) -> None:
    (row,) = ServingRow.from_csv(f"{HEAD}\n{LINE.format(users=4, ttft=100, tpot=8)}".replace("MiniMaxAI/MiniMax-M2.5", name), "f")
    assert load_whole(row.model).name == model


def test_a_file_of_ones_own(tmp_path: object) -> None:
    text = f"{HEAD}\n{LINE.format(users=4, ttft=109, tpot=8.01)}"
    assert ServingRow.columns.fit(text)
    assert not ServingRow.columns.fit("id,kind,system\n")
    from pathlib import Path

    path = Path(str(tmp_path)) / "mine.csv"
    path.write_text(text)
    told: list[tuple[int, int]] = []
    done = validate_serving(path, lambda row, rows: told.append((row, rows)))
    assert told == [(1, 1)]
    assert done.families[0]["n"] == 1
    assert done.families[0]["median_ape"] < 20
    assert done.rows[0]["tpot_ms"] == pytest.approx(8.01, rel=0.2)
    assert "TPOT" in str(done)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("8,1,8,1", "8,1,x,1"), "column moe_tp: found .x., expected a whole number"),
        (("109", "-3"), "column ttft_ms"),
        (("tp,", "t,"), "no column tp"),
    ],
)
def test_bad_files(change: tuple[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ServingRow.from_csv(f"{HEAD}\n{LINE.format(users=4, ttft=109, tpot=8)}".replace(*change), "f")


def test_rows_without_a_prediction_say_why() -> None:
    line = LINE.format(users=4, ttft=109, tpot=8)
    for change, why in (
        (("MiniMax-M2.5", "Secret-1"), "no packaged model"),
        (("MiniMax-M2.5", "GLM-4.7-Flash"), "no packaged model"),
        (("MiniMax-M2.5", "DeepSeek-R1-Distill-Llama-70B"), "no packaged model"),
        (("h200_sxm", "tpu"), "no packaged machine"),
        (("vllm", "x"), "engine"),
    ):
        (row,) = ServingRow.from_csv(f"{HEAD}\n{line}".replace(*change), "f")
        assert why in predict_row(row).note


def test_an_answer_of_one_token_has_no_tpot() -> None:
    (row,) = ServingRow.from_csv(f"{HEAD}\n{LINE.format(users=4, ttft=109, tpot=8)}".replace("1024,1024", "1024,1"), "f")
    case = predict_row(row)
    assert (case.tpot_ms, case.error(TPOT)) == (None, None)
    assert case.ttft_ms is not None
    assert case.note == "osl = 1: no token comes after the first, so there is no TPOT"


def test_the_chosen_layout() -> None:
    lines = []
    for tp, tpots in ((4, (10, 20, 40)), (8, (8, 15, 30))):
        for users, tpot in zip((4, 16, 64), tpots, strict=True):
            line = LINE.format(users=users, ttft=100, tpot=tpot).replace("a,", f"r{tp}-{users},", 1).replace(",8,1,8,1,", f",{tp},1,{tp},1,")
            lines.append(line)
    cases = [ServingCase(row, row.numbers["tpot_ms"], 100.0) for row in ServingRow.from_csv("\n".join([HEAD, *lines]), "f")]
    found = fastest_layouts(cases)
    assert (found["groups"], found["right"], found["share"], found["fronts"], found["fronts_right"]) == (1, 1, 100.0, 1, 1)
    wrong = [ServingCase(case.row, (case.tpot_ms or 1) * (3 if case.row.degree("tp") == 4 else 1 / 3), 100.0) for case in cases]
    assert fastest_layouts(wrong)["right"] == 0
    single = [case for case in cases if case.row.degrees["concurrency"] == 16]
    found = fastest_layouts(single)
    assert (found["groups"], found["right"], found["fronts"]) == (1, 1, 0)  # at the slower layout's speed


def test_stages_drafts_and_experts_that_no_engine_cuts(rows: dict[str, ServingRow]) -> None:
    """PP2 of a row is a layout's; "MTP 1" is one draft of 80 %; 2,048 wide experts on 32 groups are shared; H20 has no packaged second node."""
    head, line = HEAD + ",pp,spec_decode", LINE.format(users=4, ttft=100, tpot=8)
    (one,) = ServingRow.from_csv(f"{head}\n{line},2,MTP 1", "f")
    own = setting_of(one)
    assert own.replica.layout.name == "TP8 PP2"
    assert (own.scenario.draft_tokens, own.scenario.accepted) == (1, 1.8)
    assert rows["in5396"].drafts == 0  # "MTP 60 % acceptance" has its own way
    pools = setting_of(rows["in0783"])
    assert pools.decode is not None
    assert pools.decode.layout.name == "DP32 EP32"
    (far,) = ServingRow.from_csv(f"{head}\n{line.replace('h200_sxm', 'h20')},2,none", "f")
    with pytest.raises(Unsupported, match="16 GPUs of hw-hgx-h20, expected at most 8"):
        setting_of(far)


def test_what_versions_of_engines_do() -> None:
    """A build of vLLM drafts nearly in vain; SGLang 0.5.7 runs other kernels on CDNA 3 than 0.5.9, and a step there takes longer. It has
    graphs of prompts since 0.5.10, beside drafts since 0.5.11."""
    drafts = "a,x,A,vllm,{version},zai-org/GLM-5-FP8,8xH200,agg,fp8,fp8,1024,128,4,8,1,8,1,2026-02,265,21,MTP 1 token"
    for version, accepted in (("nightly 2026-02", 1.04), ("0.19.0", 1.8)):
        (row,) = ServingRow.from_csv(f"{HEAD},spec_decode\n{drafts.format(version=version)}", "x")
        assert setting_of(row).scenario.accepted == pytest.approx(accepted)
    with_drafts = drafts.replace("vllm", "sglang")
    for version, some, all_of_them in (("0.5.9", False, False), ("0.5.10.post1", True, False), ("0.5.11", True, True)):
        texts = (f"{HEAD},spec_decode\n{with_drafts.format(version=version).replace('MTP 1 token', name)}" for name in ("none", "EAGLE 2"))
        assert [setting_of(ServingRow.from_csv(text, "x")[0]).engine.piecewise for text in texts] == [some, all_of_them]
    line = "a,cookbook,A,sglang,{version},deepseek-ai/DeepSeek-V3.1,MI300X,agg,fp8,fp8,610,422,1,8,1,8,1,2026-02,500,24"
    old, new = (predict_row(ServingRow.from_csv(f"{HEAD}\n{line.format(version=version)}", "x")[0]).tpot_ms for version in ("0.5.7", "0.5.9"))
    assert old is not None
    assert new is not None
    assert 1.5 * new < old < 24
