"""On hw clusters `run`, `compare` and `advise` have one default; real and paper forms are not compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dysharp as ds
from dysharp.base.errors import ConfigError
from dysharp.cli.texts.comparison_text import print_comparison
from dysharp.runs.options import _shipped
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system

HW: dict[str, Any] = {"model": "deepseek-v3", "cluster": "hw-dgx-h100", "gpus": 4, "tokens": 8, "routing": "uniform"}


def test_run_compare_and_advise_send_the_same_formats() -> None:
    row = ds.run("deepep", **HW)
    assert row.options["dispatch"] == "fp8"
    assert "deepep: real form, Dispatch FP8, Combine BF16, 20 SMs" in row.header
    assert ds.compare(["deepep"], **HW).rows[0].time_us == row.time_us
    given = HW | {"systems": ["deepep"], "options": {"deepep.n_sm": 20}}
    assert ds.advise(given.pop("model"), **given).best.time_us == row.time_us
    assert ds.run("deepep", options={"dispatch": "rows"}, **HW).options["dispatch"] == "rows"


def test_paper_clusters_keep_their_formats() -> None:
    row = ds.run("deepep", model="deepseek-v3", gpus=4, tokens=8, routing="uniform")
    assert row.options["dispatch"] == "rows"
    assert not any(line.startswith("deepep:") for line in row.header)


def test_a_paper_form_has_no_sms_of_communication(capsys: pytest.CaptureFixture[str]) -> None:
    """Its kernels take none, and `n_sm` has no effect on it: the header and the table said 20."""
    done = ds.compare(["deepep"], forms="paper", **HW)
    assert done.formats["deepep"] == "Dispatch FP8, Combine BF16"
    print_comparison(done)
    assert [line.split()[:5] for line in capsys.readouterr().out.splitlines() if line.startswith("deepep ")] == [["deepep", "FP8", "/", "BF16", "-"]]


def test_no_format_ships_where_no_kernel_runs() -> None:
    megamoe, model = get_system("megamoe"), load_model("deepseek-v3")
    assert _shipped(megamoe, model, load_cluster("hw-dgx-b200")) == {"dispatch": "mxfp8", "weights": "fp4"}
    assert _shipped(megamoe, model, load_cluster("hw-dgx-h100")) == _shipped(megamoe, model, load_cluster("paper-nvl72")) == {}


@pytest.mark.slow
def test_the_default_of_an_hw_cluster_is_real_forms() -> None:
    done = ds.compare(**HW)
    assert {row.form for row in done.rows} == {"real"}
    judged = ["deepep", "deepep-ll", "hybrid-ep", "megatron-a2a", "megatron-ag", "trtllm-a2a"]
    assert sorted(row.system for row in done.rows) == sorted(
        [*judged, "ccfuser", "deepep-v2", "fastermoe", "flashinfer", "nccl-ep", "tutel", "uccl-ep"]
    )
    assert (done.baseline, done.baselines) == ("deepep", {"real": "deepep"})


@pytest.mark.slow
def test_forms_are_not_compared() -> None:
    done = ds.compare(forms="all", **HW)
    times = {row.system: row.time_us for row in done.rows}
    assert done.baselines == {"real": "deepep", "paper": "nvls"}
    assert done.speedup["deepep"] == done.speedup["nvls"] == 1.0
    assert done.speedup["dysharp"] == times["nvls"] / times["dysharp"]
    best = min((row for row in done.rows if row.form == "real"), key=lambda row: row.time_us)
    assert times["dysharp"] < best.time_us
    assert done.sentence.startswith(f"Fastest is {best.system} ")


def test_paper_forms_on_request() -> None:
    done = ds.compare(forms="paper", **HW)
    assert [row.system for row in done.rows] == ["deepep", "nvls", "comet", "fusion-only", "dysharp", "ideal"]
    assert {row.form for row in done.rows} == {"paper"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"forms": "reel"}, "forms: found 'reel'; did you mean \"real\"?"),
        ({"forms": "real", "systems": ["deepep", "dysharp"]}, 'forms: found "real" for dysharp on cluster "hw-dgx-h100"'),
        ({"forms": "real", "cluster": "paper-gh200-nvl32"}, 'on cluster "paper-gh200-nvl32", expected systems with a real form there'),
    ],
)
def test_wrong_forms(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        ds.compare(**(HW | given))
    assert text in str(error.value)


@pytest.mark.parametrize(("form", "said"), [("real", True), ("paper", False)])
def test_a_release_without_kernels_for_the_model_is_named(form: str, said: bool) -> None:
    """DeepEP's low-latency kernels are compiled for a list of hidden sizes."""
    odd = replace(load_model("deepseek-v2-lite"), name="odd", hidden=3072)
    row = ds.run("deepep-ll", model=odd, cluster="hw-dgx-h100", tokens=8, routing="uniform", options={"form": form})
    assert any("deepep-ll: no kernel for hidden 3072" in text for text in row.warnings) == said
