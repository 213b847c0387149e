"""Over several NVLink domains: whose measurements judge a prediction, what a system assumes, and what is refused before it takes time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dysharp as ds
from dysharp.base.errors import ConfigError, SimulationError
from dysharp.measured.family import judges_of
from dysharp.measured.intervals import Asked, interval_of, summed
from dysharp.measured.trust import PredictionScope, _part_judges, measured_range, no_rows, trust_of, warnings_of
from dysharp.planning.advice.prediction import AdviceRuns, Predicted
from dysharp.planning.advice.what_if import what_ifs
from dysharp.runs.arguments import RequestArgs, arguments_of
from dysharp.runs.causes import resource_words
from dysharp.runs.known import NoEstimate
from dysharp.runs.progress import Step
from dysharp.runs.request import make_request
from dysharp.runs.together import Workers
from dysharp.show.html_report import render, report_of_rows
from dysharp.specs import load_cluster, load_model

MODEL = replace(load_model("deepseek-v3"), dispatch_format="fp8")
SHARES = {"dispatch": 0.3, "gemm1": 0.4, "combine": 0.3}
SMALL: dict[str, Any] = {"model": "deepseek-v2-lite", "routing": "uniform", "tokens": 16}


def scope(system: str = "deepep", cluster: str = "hw-dgx-h100-x2", tokens: int = 4096, **options: Any) -> PredictionScope:
    options = {"form": "real", "dispatch": "fp8", **options}
    return PredictionScope(system, MODEL, load_cluster(cluster), tokens, options=options)


def names(system: str, domains: int) -> dict[str, str]:
    return {part: entry.name for part, entry in _part_judges(system, domains).items()}


def test_transfers_between_domains_have_judges_of_their_own() -> None:
    near = {"dispatch": "deepep-dispatch", "combine": "deepep-combine", "gemm1": "grouped-gemm", "gemm2": "grouped-gemm"}
    assert names("deepep", 1) == near
    assert names("deepep", 2) == near | {"dispatch": "deepep-internode", "combine": "deepep-internode"}
    assert set(names("hybrid-ep", 2).values()) == {"hybrid-ep-internode", "grouped-gemm"}
    assert names("hybrid-ep", 1) == {}, "a family beyond the bars judges nothing"
    assert names("megatron-a2a", 2) == {}, "no all-to-all between domains was measured in a layer"
    assert "sum" not in judges_of("deepep", 2), "whole layers were measured in one domain"


def test_the_error_bar_is_that_of_kernels_between_domains() -> None:
    bar = trust_of(scope(n_sm=24), SHARES)
    parts = (("between nodes", "deepep-internode", 0.6), ("kernels", "grouped-gemm", 0.4))
    whole = summed([(share, interval_of(Asked(kind, family, "h100-sxm", 0.0))) for kind, family, share in parts])
    assert bar.interval is not None
    assert bar.interval.high90 == pytest.approx(whole.high90)
    assert bar.warnings == ("deepep: measurements check the parts of this layer but not their sum; no whole layer over domains was measured",)


def test_a_network_unlike_the_measured_one_has_no_error_bar() -> None:
    """Neither faster NICs nor smaller nodes were measured; one domain of such a machine has its bar."""
    x2 = load_cluster("hw-dgx-h100-x2")
    assert x2.scale_out is not None
    for change, text in (({"nic_GBps": 94.0}, "nic_GBps 94 (measured 47)"), ({"domain_gpus": 4}, "domain_gpus 4 (measured 8)")):
        other = replace(x2, scale_out=replace(x2.scale_out, **change))
        found = trust_of(replace(scope(n_sm=24), cluster=other), SHARES)
        assert found.interval is None
        assert any(f"differs from the measured nodes in {text}: no error bar" in line for line in found.warnings)
    alone = replace(x2, scale_out=replace(x2.scale_out, nic_GBps=94.0)).with_gpus(8)
    assert trust_of(replace(scope(n_sm=24), cluster=alone), SHARES).interval is not None


def test_warnings_name_the_range_between_domains() -> None:
    assert measured_range("deepep", "gpus", "h100-sxm", 2) == (16, 32)
    assert "deepep-internode: gpus 64 is outside the measured range (16 to 32 on h100-sxm)" in warnings_of(scope(cluster="hw-dgx-h100-x8", n_sm=24))
    assert "megatron-a2a: no measurement checks predictions of its Dispatch and Combine between NVLink domains" in warnings_of(scope("megatron-a2a"))
    elsewhere = trust_of(scope("deepep-ll"), SHARES)
    assert elsewhere.interval is None
    assert "deepep-ll-internode was not measured on h100-sxm; no error bar, because only h800 was measured" in elsewhere.warnings


def test_a_machine_without_rows_between_domains_says_so() -> None:
    assert no_rows(load_cluster("hw-dgx-b200")) == no_rows(load_cluster("hw-dgx-h100-x4")) == ""
    assert no_rows(load_cluster("hw-dgx-b200-x2")) == (
        "no rows between NVLink domains: kernels between domains were measured on h100-sxm, h800; not on b200"
    )
    assert no_rows(load_cluster("hw-dgx-h200-x2")).endswith("; h200-sxm has 3 rows, at least 8 count")
    done = ds.compare(["deepep", "hybrid-ep"], cluster="hw-dgx-b200-x2", **SMALL)
    assert sum("no rows between NVLink domains:" in line for line in done.header) == 1, "one line for the machine, none per system"


def test_an_assumed_switch_is_a_warning_of_the_row() -> None:
    row = ds.run("dysharp", cluster="paper-dgx-h100-x2", **SMALL)
    assert row.warnings == ("dysharp assumes a hypothetical scale-out switch that multicasts and sums",)
    assert ds.run("dysharp", cluster="paper-dgx-h100", **SMALL).warnings == ()


def test_a_fabric_is_refused_before_any_system_runs() -> None:
    steps: list[Step] = []
    with pytest.raises(ConfigError, match=r"ideal in paper form .* found 2 NVLink domains"):
        ds.compare(["deepep", "ideal"], cluster="paper-dgx-h100-x2", progress=steps.append, **SMALL)
    assert steps == []


def test_names_of_nics_as_words() -> None:
    assert resource_words("gpu[3].nic in") == "the receiving side of the NIC of GPU 3"
    assert resource_words("gpu[3].spine out") == "the leaf uplink of GPU 3"


@pytest.mark.slow
def test_a_system_without_an_estimate_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others keep their Rows; where the baseline has no estimate, that is the error."""
    from dysharp.runs.known import _Known

    def unsettled(found: _Known, *most: float) -> str:
        return "they do not tell" if found.blocks[-1].simulated.system == "deepep" else ""

    monkeypatch.setattr("dysharp.runs.known.REFUSED", 1e9)
    monkeypatch.setattr(_Known, "refusal", unsettled)
    asked: dict[str, Any] = {"systems": ["deepep", "megatron-a2a"], "cluster": "paper-dgx-h100-x2", **SMALL, "tokens": 64, "window": 32}
    done, why = ds.compare(**asked), "window: 32 leading tokens of deepep give no estimate"
    assert [row.system for row in done.rows] == ["megatron-a2a"]
    assert done.to_dict()["left_out"] == {"deepep": f"{why}: they do not tell; simulate more tokens"}
    assert f"warning: deepep is left out: {why}: they do not tell; simulate more tokens" in done.header
    assert "All times are estimates: the first 32 of 64 tokens per GPU were simulated." in " ".join(str(done).split())
    with pytest.raises(SimulationError, match="leading tokens of deepep give no estimate"):
        ds.compare(baseline="deepep", **asked)
    tuned = ds.compare(tuned=True, **(asked | {"systems": ["deepep", "megatron-a2a", "hybrid-ep"], "cluster": "hw-dgx-h100-x2"}))
    assert [row.system for row in tuned.rows] == ["megatron-a2a", "hybrid-ep"]
    assert "deepep" not in tuned.tuned


def test_a_default_setting_without_an_estimate_loses_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tuned` runs the defaults too; where only these give no estimate, the tuned Row stays."""
    from dysharp.api import comparison

    rows, calls = comparison._rows, list[Any]()

    def without_defaults(systems: Any, request: Any) -> Any:
        calls.append(dict(request.options))
        return rows(systems, request) if len(calls) == 1 else ((), {name: NoEstimate("none") for name in systems})

    monkeypatch.setattr(comparison, "_rows", without_defaults)
    done = ds.compare(["hybrid-ep"], cluster="hw-dgx-h100-x2", tuned=True, **{**SMALL, "tokens": 64})
    assert [sorted(options) for options in calls] == [["hybrid-ep.chunk", "hybrid-ep.n_sm"], []], "the tuned setting, then the default"
    assert [row.system for row in done.rows] == ["hybrid-ep"]


def test_advice_and_reports_have_the_load_of_nics() -> None:
    """The rows by NIC of `advise` are those that DeepEP's Dispatch sends between domains; a token goes once to each remote domain."""
    asked: dict[str, Any] = {**SMALL, "cluster": "hw-dgx-h100-x2"}
    done = ds.advise(systems=["deepep"], **asked)
    load = done.to_dict()["limits"]["load"][0]
    row_bytes = 2 * load_model("deepseek-v2-lite").hidden  # BF16
    sent = done.best.row.traffic_bytes["nic out"]["dispatch"]
    assert sum(load["nic_out_rows"]) == sum(load["nic_in_rows"]) == sent // row_bytes
    assert load["nic_max_mean"][0] == pytest.approx(max(load["nic_out_rows"]) * 16 / sum(load["nic_out_rows"]))
    assert "nic_out_rows" not in ds.advise(systems=["deepep"], **{**asked, "cluster": "hw-dgx-h100"}).to_dict()["limits"]["load"][0]
    page = render(report_of_rows([done.best.row.to_dict()], "dysharp run deepep"))
    assert f"the busiest GPU sends {load['nic_max_mean'][0]:.2f} and receives {load['nic_max_mean'][1]:.2f} times the mean" in page


@pytest.mark.slow
def test_faster_links_may_feed_more_sms() -> None:
    """A changed machine runs with the SMs that were chosen and with the most that were measured; the faster run counts."""
    defaults = {name: argument.default for name, argument in arguments_of(RequestArgs).items()}
    given = {"model": "deepseek-v2-lite", "cluster": "hw-dgx-h100-x2", "routing": "uniform", "tokens": 512}
    with Workers() as workers:
        runs = AdviceRuns(make_request(RequestArgs(**(defaults | given))), workers)  # type: ignore[typeddict-item]
        few, many = runs.predict([runs.job("hybrid-ep", {"n_sm": n}) for n in (4, 16)])
        assert isinstance(few, Predicted)
        assert isinstance(many, Predicted)
        assert few.time_us > 1.1 * many.time_us
        found = {entry.change: entry for entry in what_ifs(runs, replace(few, tried={4: few.time_us, 16: many.time_us}))[0]}
        alone = {entry.change: entry for entry in what_ifs(runs, few)[0]}
    for change in ("links x2", "NICs x2", "one NVLink domain"):
        assert (found[change].predicted.row.options["n_sm"], alone[change].predicted.row.options["n_sm"]) == (16, 4)
        assert found[change].predicted.time_us < alone[change].predicted.time_us
        assert found[change].note.endswith(f"16 SMs, which alone bring {many.time_us / few.time_us - 1:+.1%}".replace("%", " %"))
        assert "SMs" not in alone[change].note
    assert alone["NICs x2"].predicted.time_us <= few.time_us < alone["half the NICs"].predicted.time_us
    assert alone["half the NICs"].predicted.bar() is None, "no such network was measured"
    assert found["EP8"].predicted.row.options["n_sm"] == 4, "the same machine in part keeps its setting"
