"""`dysharp plan`: options, answers and refusals of the command."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dysharp.api.planning import _shapes_of, plan
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.measured.intervals import Asked, interval_of
from dysharp.model import check_layout, layout_of
from dysharp.model.weights import parameters_of
from dysharp.specs import load_cluster, load_whole

SMALL = [
    "plan", "qwen3-30b", "--cluster", "paper-ascend-910b", "--gpus", "16", "--batch", "64", "--try", "tp=1,2", "--try", "mbs=1", "--try", "vpp=1",
    "--try", "pp=1,2",
]  # fmt: skip


def answer(*more: str) -> Result:
    done = CliRunner().invoke(cli, [*SMALL, *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_the_answer_says_what_it_stands_on() -> None:
    assert "Times are closed forms; no measured step on this machine checks them." in " ".join(answer().stdout.split())
    done = CliRunner().invoke(cli, ["plan", "llama3-8b", "--cluster", "hw-dgx-h100", "--gpus", "8", "--batch", "64", "--try", "tp=1,2"])
    words = " ".join(done.stdout.split())
    found = interval_of(Asked("steps", "dense, one node", "h100-sxm", 0.0))
    missed = f"{100 * found.typical:.1f} % (median), {found.usual:.0f} % (90 % of rows)"
    assert f"error bars. By closed forms, which miss measured steps like this that no fit saw by {missed}." in words


def test_what_limits_comes_with_its_share() -> None:
    """A step of one sequence of a million tokens computes all the time: the optimizer is the largest other part, and next to nothing."""
    planned = plan("llama3-8b", cluster="hw-dgx-h100-x8", gpus=64, batch=1, sequence=1048576, quick=True)
    assert planned.sentence().count("besides computing, most time goes to optimizer (0.0 %).") == 1


def test_a_gpu_without_measured_steps_gets_no_error_bar() -> None:
    """Its GEMMs keep the part of the peak that an H100 keeps: no measured GEMM of it says so."""
    one = ["plan", "llama3-8b", "--cluster", "hw-mi355x", "--gpus", "8", "--batch", "64", "--try", "tp=1", "--try", "pp=1", "--try", "cp=1"]
    done = CliRunner().invoke(cli, one, catch_exceptions=False)
    assert "no measured step on this machine checks them" in " ".join(done.stdout.split())
    assert "no measurement of mi355x was used; its published rates, and constants of hopper GPUs" in " ".join(done.stderr.split())


def test_a_cluster_of_one_domain_says_which_network_is_assumed() -> None:
    """In the words of `step`, which refuses an EP group over that network, as `plan` does."""
    one = ["plan", "qwen3-30b", "--cluster", "hw-dgx-h100", "--try", "tp=1", "--try", "pp=1,2", "--try", "vpp=1", "--try", "mbs=1"]
    done = CliRunner().invoke(cli, [*one, "--gpus", "16", "--json"], catch_exceptions=False)
    plain = json.loads(done.stdout)["shapes"][0]
    assert "Between NVLink domains: assumed 50 GB/s per GPU." in done.stderr
    assert all(layout_of(best["layout"]).ep <= 8 for best in plain["best"])
    assert plain["counts"]["ep x etp inside the only NVLink domain: the cluster states no network"] > 0
    with pytest.raises(ConfigError, match="breaks a constraint, expected: ep x etp inside the only NVLink domain"):
        CliRunner().invoke(cli, [*one, "--gpus", "16", "--check", "ep=16,dp=16,m=1"], catch_exceptions=False)
    for cluster, gpus in (("hw-dgx-h200", "8"), ("hw-dgx-h100-x2", "16")):
        done = CliRunner().invoke(cli, [*one[:3], cluster, *one[4:], "--gpus", gpus], catch_exceptions=False)
        assert "Between NVLink domains" not in done.stderr


def test_a_plan_takes_a_cluster_and_names_what_is_wrong() -> None:
    tries = ["tp=1", "pp=1", "mbs=1"]
    name = "paper-ascend-910b"
    by_name, by_value = (plan("qwen3-30b", 16, cluster, batch=64, tries=tries, n_best=1).to_dict() for cluster in (name, load_cluster(name)))
    assert by_value == by_name
    for gpus in (0, True, 16.0):
        with pytest.raises(ConfigError, match="gpus: found"):
            plan("qwen3-30b", gpus)  # type: ignore[arg-type]
    for wrong in ("batch", "sequence"):
        with pytest.raises(ConfigError, match=f"{wrong}: found 0"):
            plan("qwen3-30b", 16, **{wrong: 0})  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_ifs_stand_in_the_same_table() -> None:
    text = " ".join(answer("--what-if").stdout.split())
    assert "in-switch" in text
    assert "moe-hub" in text
    plain = json.loads(answer("--what-if", "--json").stdout)
    best = plain["shapes"][0]["best"][0]["step_s"]
    hub, switch = (plain["what_ifs"][name]["step_s"] for name in ("moe-hub", "in-switch"))
    assert switch <= hub <= best  # experts may hide the rows of all; the switch gathers shards of weights, too


@pytest.mark.parametrize("more", [[], ["--what-if", "--sensitivity"]])
def test_layouts_stand_in_one_table(more: list[str]) -> None:
    """Not in a block of lines each, however many modules a layout recomputes and offloads."""
    lines = answer("--try", "recompute=layernorm+moe_act", "--try", "offload=core_attn+expert_fc1+moe_act", *more).stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("Layout"))
    assert lines[head].split() == ["Layout", "Memory", "saved", "by", "EP", "per", "GPU", "%", "GiB", "%", "Limit"]
    assert sum(line.startswith(("Layout", "Constant")) for line in lines) == 1 + bool(more)
    first = lines[head + 1].split()
    assert first[0].startswith("tp")
    assert {"0.0", "flat", "optimizer"} <= set(first)
    assert max(map(len, lines)) <= 100


def test_shapes_have_their_own_best_and_say_which_is_unbeaten() -> None:
    lines = answer("--vary", "layers=24,48").stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("Shape"))
    assert "Unbeaten" in lines[head]
    assert all("yes" in line for line in lines[head + 1 : head + 3])


def test_every_dimension_of_a_shape_varies() -> None:
    base = load_whole("deepseek-v3")
    for key, n in (("shared_hidden", 4096), ("dense_hidden", 9216), ("heads", 64), ("vocab", 64000), ("n_experts", 128), ("layers", 41)):
        (shape,) = _shapes_of(base, [f"{key}={n}"])
        assert shape.name == f"deepseek-v3-{key}{n}"
        assert parameters_of(shape).total != parameters_of(base).total
    with pytest.raises(ConfigError, match="kv_heads"):
        _shapes_of(base, ["kv_heads=8"])  # MLA has none


@pytest.mark.slow
def test_shapes_in_processes_are_those_of_one() -> None:
    one, several = (json.loads(answer("--vary", "layers=24,48", "--json", *more).stdout) for more in ([], ["--jobs", "2"]))
    assert one == several


@pytest.mark.slow
def test_shapes_on_dask_are_those_of_one_process() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        shared = answer("--vary", "layers=24,48", "--json", "--scheduler", cluster.scheduler_address).stdout
    assert json.loads(shared) == json.loads(answer("--vary", "layers=24,48", "--json").stdout)


def test_a_folder_keeps_costs(tmp_path: Path) -> None:
    first = answer("--folder", str(tmp_path)).stdout
    again = answer("--folder", str(tmp_path)).stdout
    assert "Costs of an earlier search: " in again
    assert [line for line in again.splitlines() if "earlier search" not in line] == first.splitlines()


@pytest.mark.slow
def test_sensitivity_names_constants() -> None:
    text = answer("--sensitivity").stdout
    assert " changes of a constant by 20 % make another layout the best" in " ".join(text.split())
    assert "rate of GEMMs" in text
    assert "spread of expert loads" in text


@pytest.mark.parametrize("more", [[], ["--try", "offload=none", "--try", "recompute=none,full"], ["--try", "system=hierarchical,flat"]])
def test_a_plan_agrees_with_its_own_layout(more: list[str]) -> None:
    """The text that a plan prints, without the form that it chose, judged by the same search."""
    best = json.loads(answer("--json", *more).stdout)["shapes"][0]["best"]
    judged = json.loads(answer("--json", *more, "--check", best[0]["layout"]).stdout)["checked"]
    assert judged == best[0]
    said = " ".join(answer(*more, "--check", best[0]["layout"]).stdout.split())
    assert f"{best[0]['layout']} (EP {best[0]['system']}" in said
    assert "no worse than the best of the space" in said


def test_a_check_judges_the_system_that_it_names() -> None:
    own = "tp=1,pp=1,ep=8,dp=16,mbs=1,m=4,system=dedup,overlap=none,recompute=full,swap=none"
    plain = json.loads(answer("--json", "--check", own).stdout)
    judged, best = plain["checked"], plain["shapes"][0]["best"][0]
    assert (judged["system"], judged["overlap"], judged["recompute"]) == ("dedup", "none", ["full"])
    behind = 100 * (1 - judged["tokens_per_s_gpu"] / best["tokens_per_s_gpu"])
    words = " ".join(answer("--check", own).stdout.split())
    assert f"(EP dedup, recompute full) fits: {judged['tokens_per_s_gpu']:.0f} tokens/s" in words
    large = " ".join(answer("--check", own.replace("mbs=1,m=4", "mbs=2,m=2")).stdout.split())
    assert "GiB and does not fit: " in large
    assert f"{behind:.1f} % behind {best['layout']} (EP " in words


def test_behind_is_what_a_layout_lacks_of_the_best() -> None:
    done = json.loads(answer("--json").stdout)
    first, second = (one["tokens_per_s_gpu"] for one in done["shapes"][0]["best"][:2])
    assert done["lead_percent"] == pytest.approx(100 * (1 - second / first))
    assert f"The second layout is {done['lead_percent']:.1f} % behind" in " ".join(answer().stdout.split())


def test_fp8_never_loses_to_bf16() -> None:
    """Linears that stay in BF16, because FP8 costs them more than it gains, have no copies in FP8 either: the layouts of BF16 still fit."""
    tries = ("tp=1", "pp=8", "vpp=4", "ep=8", "mbs=1", "offload=core_attn+expert_fc1+moe_act", "weights=whole")
    asked: dict[str, Any] = {"batch": 4096, "tries": tries, "vary": ["topk=8"]}
    wide, narrow = (plan("deepseek-v2", 512, "hw-dgx-h100-x8", precision=name, **asked).plan.first.found.best[0] for name in ("bf16", "fp8"))
    assert narrow.step_us < wide.step_us


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("cluster", "batch", "sequence", "tries"),
    [
        ("hw-mi355x-x8", 64, 4096, ("pp=4", "vpp=2", "weights=sharded", "schedule=zbv", "recompute=none")),  # launches of casts lengthen the ramp
        ("hw-dgx-b200-x8", 512, 2048, ("pp=1,2,4", "vpp=1,2", "recompute=none,core_attn")),  # copies do not fit
        ("hw-mi355x-x8", 64, 4096, ()),  # a first look goes another way
    ],
)
def test_fp8_is_no_slower_in_a_pipeline_or_where_copies_do_not_fit(cluster: str, batch: int, sequence: int, tries: tuple[str, ...]) -> None:
    few = ("tp=1", "cp=1", "mbs=1", "ep=8,16", "swap=none", *tries) if tries else ()
    asked: dict[str, Any] = {"batch": batch, "sequence": sequence, "tries": few, "quick": not tries}
    wide, narrow = (plan("deepseek-v2", 64, cluster, precision=name, **asked).plan.first.found.best[0] for name in ("bf16", "fp8"))
    assert narrow.step_us <= wide.step_us


def test_one_layout_is_shown_and_the_second_is_still_known() -> None:
    one, two = (json.loads(answer("--json", "--best", n).stdout) for n in "12")
    assert len(one["shapes"][0]["best"]) == 1
    assert one["lead_percent"] == two["lead_percent"] > 0
    assert "No second layout fits" not in answer("--best", "1").stdout


@pytest.mark.slow
def test_a_quick_look_goes_as_far_whatever_is_shown() -> None:
    """It goes on from the best that it has found: from two of them it ended at 2.02 s where ten lead to 1.40 s."""
    one, ten = (plan("qwen3-30b", 16, "hw-dgx-h100-x2", batch=64, n_best=n, quick=True) for n in (1, 10))
    assert one.plan.first.found.best == ten.plan.first.found.best[:1]
    assert "MFU: Megatron's count of model FLOPs over the dense peak of the expert GEMMs' type." in one.header  # BF16 where they stay in BF16


def test_a_check_takes_replicas_and_batch_from_the_task() -> None:
    texts = "tp=1,pp=1,ep=8,dp=16,mbs=1,m=4", "tp=1,pp=1,ep=8,m=4", "tp=1,pp=1,ep=8"
    whole, *short = (json.loads(answer("--json", "--check", text).stdout)["checked"] for text in texts)
    assert short == [whole, whole]


def test_the_best_layout_is_said_as_step_reads_it() -> None:
    """48 layers in 2 x 5 chunks: the stages are part of the text."""
    best = json.loads(answer("--try", "pp=2", "--try", "vpp=5", "--json").stdout)["shapes"][0]["best"][0]
    said = answer("--try", "pp=2", "--try", "vpp=5").stdout
    options = shlex.split(said[said.index("dysharp step ") : said.index("\n\nCandidates")])
    layout = layout_of(options[options.index("--layout") + 1])
    assert layout.stages == best["stages"]
    assert (layout.gpus, layout.global_batch) == (16, 64)
    check_layout(load_whole("qwen3-30b"), layout)
    assert "--precision" not in options


def test_the_line_for_step_has_formats_and_sequence_of_the_plan() -> None:
    """Without them `step` would answer for another precision, other loads and other systems. Closed forms of a plan send BF16 rows."""
    said = answer("--try", "pp=2", "--try", "vpp=1", "--precision", "fp8", "--sequence", "2048").stdout
    assert " --sequence 2048 --precision fp8,sent=bf16,back=bf16 --routing normal-cv:0.256 \\\n" in said
    assert "  --systems megatron-a2a  # which does not offload\n" in said


def test_arguments_are_text_to_paste() -> None:
    assert answer("--arguments", "megatron-lm").stdout.startswith("--tensor-model-parallel-size ")
    judged = answer("--check", "tp=2,pp=1,ep=8,dp=8,mbs=1,m=8", "--arguments", "mindspeed").stdout
    assert "--expert-model-parallel-size 4" in judged
    assert "--moe-tp-extend-ep" in judged


def test_arguments_leave_the_answer_on_the_screen() -> None:
    """On stderr: stdout stays text to paste."""
    done = answer("--what-if", "--arguments", "megatron-lm")
    assert all(line.startswith("--") for line in done.stdout.splitlines())
    said = " ".join(done.stderr.split())
    assert all(words in said for words in ("MoE-Hub", "tokens/s per GPU, MFU", "megatron-lm: hierarchical"))


def test_arguments_of_a_checked_layout_come_with_its_verdict() -> None:
    """The verdict goes to stderr: stdout stays text to paste."""
    done = answer("--check", "tp=2,pp=1,ep=8,dp=8,mbs=1,m=8,overlap=none", "--arguments", "mindspeed")
    assert all(line.startswith("--") for line in done.stdout.splitlines())
    assert "% behind tp=" in " ".join(done.stderr.split())


def test_a_picture_has_three_parts(tmp_path: Path) -> None:
    answer("--plot", str(tmp_path / "plan.svg"))
    text = (tmp_path / "plan.svg").read_text()
    assert [f'id="axes_{n}"' in text for n in (1, 2, 3, 4)] == [True, True, True, False]


def test_shapes_also_serve() -> None:
    done = CliRunner().invoke(cli, ["plan", "llama3-8b", "--cluster", "hw-dgx-h100", "--gpus", "8", "--batch", "64", "--serve", "ttft=2s,tpot=50ms"])
    assert done.exit_code == 0, done.output
    assert "served tokens/s/GPU" in done.stdout


@pytest.mark.parametrize(
    ("more", "found"),
    [
        (["--gpus", "2", "--batch", "8", "--try", "ep=1,2"], "binding: memory"),
        (["--try", "tp=3"], "binding: tp"),
        (["--batch", "7", "--try", "pp=1"], "binding: dp x mbs divides the batch"),
        (["--check", "tp=1,pp=1,ep=4,dp=4,m=16"], "found 4 GPUs"),
    ],
)
def test_refusals_name_what_binds(more: list[str], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        CliRunner().invoke(cli, [*SMALL, *more], catch_exceptions=False)


@pytest.mark.parametrize(("name", "value"), [("spread", 2.0), ("spread", -0.1), ("spread", float("nan")), ("imbalance", 0.5)])
def test_python_has_the_limits_of_the_command(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: found {value}, expected [01] to 1"):
        plan("deepseek-v2-lite", 8, "hw-dgx-h100", **{name: value})  # type: ignore[misc]


def test_a_batch_that_binds_gets_the_next_one() -> None:
    with pytest.raises(ConfigError, match="a batch of 8"):
        CliRunner().invoke(cli, [*SMALL, "--batch", "7", "--try", "pp=1"], catch_exceptions=False)


def test_a_quick_look_at_nothing_says_what_a_search_says() -> None:
    """A search is no help where no candidate is left to look at."""
    with pytest.raises(ConfigError, match="binding: tp x cp x pp divides the GPUs"):
        plan("llama3-8b", 8, "hw-dgx-h100", tries=["tp=3"], quick=True)


def test_a_plan_without_a_switch_prints_a_command_that_step_takes() -> None:
    """No system but MoRI's sends rows between GPUs without a switch, so `deepep` of a plan is simulated as `mori`."""
    asked = ["plan", "qwen3-30b", "--gpus", "8", "--batch", "64", "--cluster", "hw-mi355x", "--quick", "--try", "ep=8"]
    said = CliRunner().invoke(cli, asked, catch_exceptions=False).stdout.replace("\\\n", "")
    options = shlex.split(said[said.index("dysharp step ") : said.index("\n\nCandidates")], comments=True)
    assert options[options.index("--systems") + 1] == "mori"
    done = CliRunner().invoke(cli, [*options[1:], "--quick"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Quick answer, closed form: mori:")


@pytest.mark.parametrize(("asked", "message"), [
    ({"check": "tp=2,pp2"}, "layout: 'pp2': unknown key"), ({"check": "tp=2,tp=4"}, "found tp twice, expected it once"),
    ({"check": "tp=2,recompute=none,recompute=full"}, "--check: found recompute=none, recompute=full, expected each word once"),
    ({"vary": ["layers=32,32"]}, "found llama3-8b-layers32, llama3-8b-layers32, expected different"),
])  # fmt: skip
def test_no_word_of_a_layout_or_shape_is_left_out(asked: dict[str, Any], message: str) -> None:
    """`pp2` was left out, of two degrees the last one counted, and two equal shapes ended in a ValueError."""
    with pytest.raises(ConfigError, match=message):
        plan("llama3-8b", 8, "hw-dgx-h100", batch=32, quick=True, **asked)


def test_sharded_weights_are_a_word_of_check() -> None:
    done = plan("llama3-8b", 8, "hw-dgx-h100", batch=32, quick=True, check="weights=sharded")
    assert done.checked is not None
    assert done.checked.layout.fsdp == 8
    assert not any("xpert" in line or "EP" in line for line in done.header)  # of a dense model
