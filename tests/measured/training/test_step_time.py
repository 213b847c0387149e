"""Step times of measured rows: what a row says about its framework, groups with their bars, the floor, slopes of micro-batches."""

import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from dysharp.costs.machine import Machine
from dysharp.measured.measurements import Unsupported
from dysharp.measured.training.setting import TrainingRow, machine_of, model_of, setting_of, training_recipe_of
from dysharp.measured.training.step_time import BARS, error_bar, estimate_row, judge_groups, measured_s, slopes, step_cases, step_interval, votes
from dysharp.model import layout_of
from dysharp.specs import load_cluster, load_whole
from dysharp.specs.fitted import fitted_values
from dysharp.training.recipe import WHOLE

DENSE = ("tr293", "tr294", "tr295", "tr309", "tr310", "tr311")


@pytest.fixture(scope="module")
def rows() -> dict[str, TrainingRow]:
    return {row.id: row for row in TrainingRow.read()}


def test_dense_rows_of_one_node_keep_their_bar_and_beat_the_floor(rows: dict[str, TrainingRow]) -> None:
    (group,) = judge_groups(step_cases([rows[name] for name in DENSE]))
    assert group["group"] == "dense, one node"
    assert group["holds"]
    assert group["median_ape"] < BARS["dense, one node"]
    assert group["floor_median_ape"] > 2 * group["median_ape"]


def test_slopes_of_micro_batches(rows: dict[str, TrainingRow]) -> None:
    found = slopes(step_cases([rows[name] for name in DENSE]))
    assert [entry["rows"] for entry in found] == [["tr293", "tr309"], ["tr294", "tr310"], ["tr295", "tr311"]]
    for entry in found:
        assert entry["slope_predicted"] == pytest.approx(entry["slope_measured"], rel=0.06)
        assert entry["intercept_predicted"] == pytest.approx(entry["intercept_measured"], abs=40)


def test_intercepts_of_micro_batches_by_the_bytes_of_the_end(rows: dict[str, TrainingRow]) -> None:
    """Rows of SimuMax with few and many micro-batches: what does not grow with them is within 18 ms in all eight cases, within 5 ms on average.

    One case passes 15 ms, the bar of before: 17.7 ms (docs/deviations.md, one clock).
    """
    ends = slopes(step_cases([row for row in rows.values() if row.text("source").startswith("MooreThreads/SimuMax")]))
    apart = [end["intercept_predicted"] - end["intercept_measured"] for end in ends if end["gpu"] == "b200"]
    assert len(apart) == 8
    assert max(map(abs, apart)) < 18
    assert abs(sum(apart)) < 8 * 5


@pytest.mark.slow
def test_every_group_against_its_bar(rows: dict[str, TrainingRow]) -> None:
    """Every group keeps its bar and beats the floor."""
    cases = step_cases(list(rows.values()))
    assert all(case.floor < 0.7 * min(case.measured, case.predicted) for case in cases if case.floor and case.predicted)
    groups = {group["group"]: group for group in judge_groups(cases)}
    assert set(groups) == set(BARS)
    assert all(group["beats_floor"] for group in groups.values())
    assert groups["MoE with pipeline, racks"]["median_ape"] < 9.7
    assert all(group["holds"] for group in groups.values())


def test_what_a_row_says_about_its_framework(rows: dict[str, TrainingRow]) -> None:
    of = {
        name: training_recipe_of(rows[name], machine_of(rows[name])[0], moe=True)
        for name in ("tr227", "tr523", "tr525", "tr042", "tr008", "tr307", "tr106")
    }
    assert (of["tr227"].dispatcher, of["tr227"].graphs, of["tr227"].dtype) == ("deepep", ("moe_router", "moe_preprocess"), "mxfp8")
    assert (of["tr523"].overlap_ep, of["tr525"].overlap_ep) == (False, True)
    assert of["tr042"].graphs == of["tr008"].graphs == (WHOLE,)
    assert of["tr008"].overlap_ep
    assert (of["tr307"].dispatcher, of["tr307"].counts, of["tr307"].overlap_dp) == ("alltoall", False, False)
    assert (of["tr106"].dispatcher, of["tr106"].overlap_ep, of["tr106"].graphs) == ("alltoall", True, ())


def test_a_library_recipe_sorts_in_a_node_with_an_unfused_router(rows: dict[str, TrainingRow]) -> None:
    """Eight GPUs of EP are a node whatever their TP; overlap is named in notes too; a row without its sequence has no prediction."""
    row = rows["tr515"]
    recipe = training_recipe_of(row, "h100-sxm", moe=True)
    assert (recipe.dispatcher, recipe.router_fusion) == ("alltoall", False)
    assert training_recipe_of(rows["tr227"], "b200", moe=True).router_fusion
    noted = replace(row, texts=row.texts | {"note": "+1f1b overlap"})
    assert (training_recipe_of(noted, "h100-sxm", moe=True).overlap_ep, recipe.overlap_ep) == (True, False)
    with pytest.raises(Unsupported, match="found no seq"):
        setting_of(replace(row, degrees=row.degrees | {"seq": 0}))


def test_recipes_of_hybrid_stacks(rows: dict[str, TrainingRow]) -> None:
    """Presets of Super leave the type alltoall; parts are named without the word graph; nothing runs beside; one layer predicts twice."""
    told = '"transformer_engine" ["attn", "mamba", "moe_router"]'
    named = {"note": "preset X at 1; cuda_graph_scope=['mamba']", "dispatcher": "hybridep"}
    texts = {
        "preset": named | {"model": "Nemotron_3_Super"}, "recipe": named | {"model": "Nemotron_3_Super", "note": f"recipe x_config at 1; {told}"},
        "nano": named | {"model": "Nemotron_3_Nano"}, "gpt": named | {"note": f"recipe x_config at 1; {told}"},
    }  # fmt: skip
    base = rows["tr008"]
    every = {name: replace(base, texts=base.texts | one | {"software": "26.06.01 NeMo"}) for name, one in texts.items()}
    of = {name: training_recipe_of(row, "gb200", moe=True) for name, row in every.items()}
    assert [one.dispatcher for one in of.values()] == ["alltoall", "hybrid-ep", "hybrid-ep", "hybrid-ep"]
    assert (of["preset"].graphs, of["recipe"].graphs, of["gpt"].graphs) == (("mamba",), ("attn", "moe_router", "mamba"), (WHOLE,))
    assert (of["recipe"].overlap_ep, of["gpt"].overlap_ep) == (False, True)
    assert (model_of(every["recipe"]).mtp, model_of(every["nano"]).mtp) == (2, 0)


def test_a_launch_takes_what_the_host_of_a_machine_takes() -> None:
    """Grace over x86 as the same benchmark measured both; the Xeon of a DGX B200 by its clock."""
    names = ("hw-dgx-h100", "hw-gb200-nvl72", "hw-gb300-nvl72", "hw-dgx-b200")
    times = {name: Machine(load_cluster(name)).launch(10, 5, "forward") for name in names}
    measured = fitted_values()["gb200.host_call_us"] / fitted_values()["h100.host_call_us"]
    assert times["hw-gb200-nvl72"] == times["hw-gb300-nvl72"] == pytest.approx(measured * times["hw-dgx-h100"], rel=0.005)
    assert times["hw-dgx-b200"] == pytest.approx(3.8 / 4.0 * times["hw-dgx-h100"])
    assert load_cluster("hw-hgx-b300").host_factor == 1


def test_rows_without_a_preset_run_as_those_of_their_container(rows: dict[str, TrainingRow]) -> None:
    of = {name: training_recipe_of(rows[name], machine_of(rows[name])[0], moe=True) for name in ("tr251", "tr247", "tr259", "tr191", "tr230")}
    assert (of["tr251"].graphs, of["tr247"].graphs) == (("attn", "moe_router", "moe_preprocess"), ("moe_router", "moe_preprocess"))
    assert (of["tr259"].graphs, of["tr259"].overlap_ep, of["tr251"].overlap_ep) == ((), True, False)
    assert (of["tr247"].recompute, of["tr251"].recompute) == (("mla_up_proj",), ())
    assert (of["tr191"].graphs, of["tr191"].overlap_ep) == ((), False)  # another container
    assert of["tr230"].graphs == ("attn", "moe_router", "moe_preprocess")  # named by the row


def test_adapters_of_frozen_weights_have_no_gradients_and_automodel_recomputes_all(rows: dict[str, TrainingRow]) -> None:
    of = {case.id: case.error for case in step_cases([rows[name] for name in ("tr071", "tr072", "tr073", "tr339", "tr340")])}
    # +44 to +53 % with gradients, -23 and -35 % without recomputation; 10 before positions of MLA had the passes of all others
    # (tr339: -9.6 to -10.9); -11.1 since tiles of attention start in order and a softmax is faster
    assert all(abs(error) < 11.2 for error in of.values() if error is not None)
    assert len(of) == 5
    training_recipe = training_recipe_of(rows["tr348"], "h100-sxm", moe=False)
    assert (training_recipe.frozen, training_recipe.recompute) == (True, ("full",))
    assert not training_recipe_of(rows["tr293"], "b200", moe=False).frozen


@pytest.mark.slow
def test_causal_pairs_have_their_signs_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """All signs of changes beyond 3 %, and 11 of 15 sizes within 0.6 to 1.6: the bar of 70 %."""
    runpy.run_path(str(Path(__file__).parents[3] / "bench" / "causal_pairs.py"))["main"]()
    counted, signs, sizes = map(int, re.findall(r"\d+", capsys.readouterr().out.splitlines()[-1])[:3])
    assert counted == signs == 15
    assert sizes >= 11


STAGES = {"tr137": "Et*4|(t*4|)*14t*1mL", "tr290": "Et*1|(t*2|)*30mL", "tr010": "Et*3|(t*4|)*22t*3L", "tr091": "Et*4|(t*4|)*14tmL", "tr191": ""}


@pytest.mark.parametrize("name", STAGES)
def test_stages_of_recipes(rows: dict[str, TrainingRow], name: str) -> None:
    assert setting_of(rows[name]).layout.stages == STAGES[name]


def test_a_row_in_stages_that_names_no_chunks_has_those_of_its_models_presets(rows: dict[str, TrainingRow]) -> None:
    """Llama3-70B has five in presets of pretraining; a preset that leaves them unset has one chunk, and so has another framework's row."""
    row = next(row for row in rows.values() if row.model == "llama3-70b" and row.text("source").startswith("NVIDIA-NeMo/Megatron-Bridge"))
    layout = {"tp": 1, "pp": 4, "vpp": 0, "cp": 1, "dp": 16, "fsdp": 0, "gpus": 64, "gbs": 256, "mbs": 2, "ga": 8}
    bare = replace(row, degrees=row.degrees | layout, texts=row.texts | {"note": "", "recompute": ""})
    assert setting_of(bare).layout.vpp == 5
    for change in ({"note": "preset X"}, {"source": "elsewhere"}):
        assert setting_of(replace(bare, texts=bare.texts | change)).layout.vpp == 1
    assert setting_of(replace(bare, degrees=bare.degrees | {"vpp": 10})).layout.vpp == 10


def test_more_chunks_than_layers_are_told(rows: dict[str, TrainingRow]) -> None:
    many = replace(rows["tr137"], degrees=rows["tr137"].degrees | {"vpp": 9})
    with pytest.raises(Unsupported, match=r"found 144 chunks \(pp x vpp\), expected at most 61 for 61 layers"):
        setting_of(many)


def test_measured_times(rows: dict[str, TrainingRow]) -> None:
    assert measured_s(rows["tr307"]) == 1.1017
    assert measured_s(rows["tr002"]) == pytest.approx(4096 * 4096 / 4912 / 256)


def test_rows_that_are_listed_and_not_judged(rows: dict[str, TrainingRow]) -> None:
    """Sharded weights and FP4 are judged, but not fine-tuning with sharded weights."""
    of = {case.id: case for case in step_cases([rows[name] for name in ("tr077", "tr079", "tr348", "tr071", "tr078", "tr532", "tr526")])}
    assert of["tr077"].error is not None
    assert abs(of["tr077"].error) < 9.7  # 6.7 before one clock, 9.1 before tiles of attention started in order (docs/deviations.md)
    assert "fine-tuning" in of["tr348"].note
    assert [name for name, case in of.items() if case.judged] == ["tr077", "tr079", "tr078"]
    assert of["tr532"].group == "no group"


def test_equal_rows_of_one_machine_are_one_vote(rows: dict[str, TrainingRow]) -> None:
    cases = step_cases([rows[name] for name in ("tr293", "tr294", "tr078")])
    assert set(votes(cases)) == {("llama3-70b", "b200"), ("llama3-70b", "gb200")}


HEAD = "id,source,model,hardware,gpus,precision,gbs,mbs,seq,tp,pp,ep,dp,ga,tok_s_gpu"


def test_a_row_of_ones_own() -> None:
    text = f"{HEAD}\na,mine,Llama3-8B,H100,8,BF16,64,1,8192,1,1,1,8,8,10000\nb,mine,Llama3-8B,Abacus,8,BF16,64,1,8192,1,1,1,8,8,1"
    good, bad = step_cases(TrainingRow.from_csv(text, "f"))
    assert good.predicted is not None
    assert 0.7 < good.predicted / good.measured < 1.4
    assert (bad.predicted, bad.note) == (None, "no packaged machine is called like 'Abacus'")


def test_rows_with_blanks_and_other_dispatchers() -> None:
    """No dp was one replica; allgather and other names were alltoall; a row without a number was not listed."""
    head = f"{HEAD.replace('tok_s_gpu', 'dispatcher,tok_s_gpu')}\n"
    names = ("", "deepep", "allgather", "A2A", "all-to-all", "flex")
    lines = (f"{name or 'none'},mine,qwen3-30b,H100,16,BF16,512,2,4096,1,1,16,,,{name},11238" for name in names)
    blank, deepep, other, *spelt, flex = step_cases(TrainingRow.from_csv(head + "\n".join(lines), "f"))
    assert {one.predicted for one in spelt} == {spelt[0].predicted}
    assert spelt[0].predicted is not None
    assert flex.predicted == deepep.predicted != spelt[0].predicted
    assert (blank.note, deepep.note) == ("", "")
    assert deepep.predicted is not None
    assert 0.7 < deepep.predicted / deepep.measured < 1.3
    assert other.note == "no closed form of the dispatcher 'allgather', expected alltoall, deepep, hybridep or uccl"


def test_micro_batches_beyond_the_pipeline_cost_the_same_each(rows: dict[str, TrainingRow]) -> None:
    done = estimate_row(rows["tr309"])
    assert 0 < done.step_us - 32 * done.slope_us < 0.1 * done.step_us


def test_the_error_bar_of_a_step() -> None:
    machine = Machine(load_cluster("hw-dgx-h100-x8"))
    asked = (("llama3-8b", "tp=8"), ("deepseek-v3", "pp=8,ep=32"))
    near, far = (step_interval(load_whole(name), layout_of(layout), machine) for name, layout in asked)
    assert near is not None
    assert far is not None
    assert near.high90 / near.low90 < far.high90 / far.low90  # calls over NICs of another operator's cluster are in its rows
    said = f'Measured steps like this ("MoE with pipeline, NICs") that no fit saw take {far.words}.'
    assert error_bar(load_whole("deepseek-v3"), layout_of("pp=8,ep=32"), machine) == said
    hot = error_bar(load_whole("deepseek-v3"), layout_of("pp=8,ep=32"), machine, 2.31)  # measured steps force balanced experts
    assert hot == f"{said} They balance experts; here the busiest rank has 2.3 times the mean (--routing uniform: 1)."
    assert '"dense, one node"' in error_bar(load_whole("llama3-8b"), layout_of("tp=8"), machine)
    assert "read ratios" in error_bar(load_whole("llama3-8b"), layout_of("tp=8"), Machine(load_cluster("paper-gh200-nvl32")))
