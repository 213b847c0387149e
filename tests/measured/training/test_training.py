"""Training runs: the reader, the setting of a row, and the two families that have no time: model FLOPs and memory."""

from pathlib import Path

import pytest

from dysharp.api.run_validation import validate_training
from dysharp.base.errors import ConfigError
from dysharp.measured.training import families
from dysharp.measured.training.families import summarise
from dysharp.measured.training.setting import TrainingRow, _layout_of_row, model_of, setting_of

HEAD = "id,source,model,hardware,gpus,precision,gbs,mbs,seq,tp,pp,ep,dp,ga,mem_gib,tok_s_gpu,tflops_gpu"
LINE = "a,mine,Llama3-8B,H100,8,BF16,64,1,8192,1,1,1,8,8,{},{},{}"


@pytest.fixture(scope="module")
def rows() -> list[TrainingRow]:
    return TrainingRow.read()


def test_model_flops_of_every_group_of_rows(rows: list[TrainingRow]) -> None:
    errors = families.by_group(families.flops_cases(rows))
    assert len(errors) >= 22
    assert max(map(abs, errors.values())) <= families.FLOPS_BAR, errors


def test_memory_of_judged_rows(rows: list[TrainingRow]) -> None:
    cases = families.memory_cases(rows)
    done = summarise(families.MEMORY, cases, families.MEMORY_BAR)
    assert (done["n_rows"], done["n"]) == (38, 29)
    assert done["median_ape"] < 0.3
    assert done["max_ape"] < 0.9
    assert {case.id for case in cases if not case.judged} == {f"tr{i}" for i in (*range(515, 521), 527, 528, 529)}


def test_recomputation_saves_with_the_measured_sign(rows: list[TrainingRow]) -> None:
    """Moonlight: mla_up_proj saves 0.72 GB, moe_act 0.68 GB, core_attn nothing; mlp beside mla_up_proj nothing."""
    of = {case.id: case for case in families.memory_cases(rows)}
    for name in ("tr517", "tr519", "tr520"):
        assert of[name].predicted < of["tr515"].predicted
        assert of[name].measured < of["tr515"].measured
    assert of["tr516"].predicted == of["tr515"].predicted
    assert of["tr529"].predicted < of["tr528"].predicted < of["tr527"].predicted  # as measured


def test_reduced_models_keep_one_dense_layer(rows: list[TrainingRow]) -> None:
    of = {row.id: row for row in rows}
    cut = model_of(of["tr307"])
    assert (cut.dense_layers, cut.moe_layers, cut.mtp) == (1, 3, 0)
    assert setting_of(of["tr293"]).model.n_layers == 12


def test_a_file_of_ones_own() -> None:
    text = f"{HEAD}\n{LINE.format(60, 10000, 515)}"
    assert TrainingRow.columns.fit(text)
    assert not TrainingRow.columns.fit("id,kind,system,hardware,config_json,metric,value,unit,source\n")
    assert not TrainingRow.columns.fit("id,kind\ra,b\r")
    (row,) = TrainingRow.from_csv(text, "f")
    (found,) = families.memory_cases([row])
    assert found.judged
    (count,) = families.flops_cases([row])
    assert (count.model, count.convention, round(count.error or 0, 2)) == ("llama3-8b", "megatron", -0.06)
    assert set(TrainingRow.columns.all) >= set(HEAD.split(","))


NOT_PREDICTED = {"Llama3-8B,H100,9": "found 9 GPUs, expected tp x pp x cp x dp = 8", "GLM-9,H100,8": "no packaged model is called like 'GLM-9'",
                 "Llama3-8B-Flash,H100,8": "no packaged model is called like 'Llama3-8B-Flash'"}  # fmt: skip


@pytest.mark.parametrize("change", NOT_PREDICTED)
def test_a_row_without_a_prediction_says_why(change: str) -> None:
    line = LINE.format(60, "", "").replace("Llama3-8B,H100,8", change)
    (case,) = families.memory_cases(TrainingRow.from_csv(f"{HEAD}\n{line}", "f"))
    assert (case.predicted, case.judged) == (None, False)
    assert NOT_PREDICTED[change] in case.note


def test_micro_batches_follow_from_the_batch() -> None:
    """An empty `ga` was one micro-batch, however large the batch."""
    line = LINE.format(60, "", "")
    for ga, of in (("8", 8), ("", 8)):
        (row,) = TrainingRow.from_csv(f"{HEAD}\n{line.replace('1,8,8,', f'1,8,{ga},')}", "f")
        assert _layout_of_row(row).micro_batches == of
    for change, why in (
        (("1,8,8,", "1,8,4,"), "found gbs 64, mbs 1, dp 8, ga 4, expected gbs = mbs x dp x ga"),
        ((",64,1,", ",63,1,"), "found gbs 63"),
    ):
        (case,) = families.memory_cases(TrainingRow.from_csv(f"{HEAD}\n{line.replace(*change)}", "f"))
        assert why in case.note


def test_a_row_that_cannot_be_read_is_listed_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEAD}\n{LINE.format(60, 10000, 515)}\nb{LINE.format(60, 1, 1)[1:].replace(',8,8,', ',8,/,')}\n")
    done = validate_training(path)
    assert [(row["id"], row["measured"], row["note"]) for row in done.rows if row["id"] == "b"] == [
        ("b", None, "row 2: column ga: found '/', expected a whole number up to 999999999")
    ]
    assert [row["family"] for row in done.rows if row["id"] == "a"] == ["step", "memory", "model-flops"]
    path.write_text(f"{HEAD}\n{LINE.format('', '', '')}\n")
    assert [(row["id"], row["note"]) for row in validate_training(path).rows] == [("a", "found none of step_s, tok_s_gpu, mem_gib")]


BAD = {
    "id,model\na,b": "f: header: found no column hardware",
    f"{HEAD}\n{LINE.format('x', 1, 1)}": "f: row 1: column mem_gib: found 'x', expected a number above 0",
    f"{HEAD}\n{LINE.format(1, 1, 1).replace('8192', '-1')}": "f: row 1: column seq: found '-1', expected a whole number",
    f"{HEAD}\n{LINE.format(1, 1, 1).replace('8192', '99999999999')}": "column seq: found '99999999999', expected a whole number up to 999999999",
    f"{HEAD}\n{LINE.format(2e12, 1, 1)}": "column mem_gib: found '2000000000000.0', expected a number above 0 and below 1.09951e+12",
    f"{HEAD}\na,b": "f: row 1: found 2 columns, expected 17",
    f"{HEAD}\n{LINE.format(1, 1, 1)}\n{LINE.format(1, 1, 1)}": "f: row 2: column id: found 'a' again",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_gets_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        TrainingRow.from_csv(text, "f")
    assert BAD[text] in str(error.value)
