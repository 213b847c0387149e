"""`advise --libraries`: calls of every library by batch and GPUs, their error bars, and what the screen says where sources disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.base.errors import ConfigError
from dysharp.cli.texts.libraries_text import screen
from dysharp.measured.calls import interval_of_call
from dysharp.measured.families.library_calls import CallCase, program_us
from dysharp.measured.intervals import Interval
from dysharp.planning.advice.libraries import MOST_LL, Call, LibraryCell, advise_libraries
from dysharp.specs.fitted import fitted_values

CASE = CallCase(
    gpu="h100-sxm", verb="roundtrip", gpus=8, hidden=2048, experts=64, topk=6, tokens=8, library="deepep-v2", mode="normal", regime="drained",
    nodes=1, fp8=False, capacity=512,
)  # fmt: skip


def test_a_cell_ranks_every_library_with_a_kernel() -> None:
    (cell,) = advise_libraries("deepseek-v2-lite", ["hw-dgx-h100"], tokens=[8], gpus=[8]).cells
    calls = {call.library: call for call in cell.calls}
    assert set(calls) == {"deepep-v2 LL", "uccl-ep LL", "deepep-v2 normal", "uccl-ep normal", "nccl-ep normal", "flashinfer-ep normal"}
    assert cell.without == {"mori normal": "no kernel on hopper, expected cdna3 or cdna4"}
    assert [call.us for call in cell.calls] == sorted(call.us for call in cell.calls)
    assert calls["deepep-v2 normal"].us == pytest.approx(program_us(CASE, fitted_values()))
    us = calls["deepep-v2 normal"].us
    interval = interval_of_call(CASE, us)
    assert interval is not None
    assert calls["deepep-v2 normal"].bar() == interval.around(us)
    assert calls["deepep-v2 normal"].pool != ""
    assert cell.pools == ("deepep-v2 normal on 8 GPUs of hw-dgx-h100: sources differ by -37 to -18 %",)


@pytest.mark.slow
def test_kernels_end_where_their_buffers_nodes_or_links_end() -> None:
    done = advise_libraries("deepseek-v2-lite", ["hw-dgx-h100", "hw-mi355x"], tokens=[2 * MOST_LL], gpus=[16])
    h100, mi355x = done.cells
    assert h100.nodes == mi355x.nodes == 2
    assert h100.without["deepep-v2 LL"] == f"low-latency buffers hold {MOST_LL} tokens"
    assert h100.without["flashinfer-ep normal"] == "no kernels over nodes"
    assert [call.library for call in mi355x.calls] == ["mori normal"]
    assert any("the pool of machines, not the kernel, decides" in note and "-56 to -36 %" in note for note in done.notes)
    assert any("no measurement of mi355x was used" in note for note in done.notes)


def test_a_graph_has_no_error_bars() -> None:
    done = advise_libraries("deepseek-v2-lite", ["hw-dgx-b200"], tokens=[8], gpus=[8], regime="graph")
    assert {call.bar() for call in done.cells[0].calls} == {None}
    assert done.cells[0].ties() == ()
    assert any("no error bars" in note for note in done.notes)


def test_bars_that_overlap_are_ties() -> None:
    known, wide = Interval(0.9, 0.95, 1.05, 1.1, 0.03, near=True), Interval(0.5, 0.7, 1.3, 1.5, 0.1, near=False)
    made = (("a", 100.0, known), ("b", 120.0, known), ("c", 200.0, wide), ("d", 130.0, None))
    calls = tuple(Call(name, False, us, errors, "") for name, us, errors in made)
    cell = LibraryCell("hw-dgx-h100", 8, 1, 8, calls, {})
    assert [call.library for call in cell.ties()] == ["b", "c"]


def test_an_interval_is_of_its_gpu_where_rows_are_known() -> None:
    """No call on an MI355X was measured; of graphs there is no row at all."""
    here, unseen = (interval_of_call(replace(CASE, gpu=gpu), 100.0) for gpu in ("h100-sxm", "mi355x"))
    assert here is not None
    assert unseen is not None
    assert here.near
    assert not unseen.near
    assert interval_of_call(replace(CASE, nodes=2, gpus=16), 100.0) != here
    assert interval_of_call(replace(CASE, regime="graph"), 100.0) is None


def test_a_screen_of_all_batches_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six batches and two sizes; the times are made up, because the screen is what counts."""
    monkeypatch.setattr("dysharp.planning.advice.libraries.program_us", lambda case, constants: 10.0 * case.tokens + len(case.library))
    lines = screen(advise_libraries("deepseek-v3", ["hw-dgx-h100"]))
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_a_cluster_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a cluster of"):
        advise_libraries("deepseek-v2-lite", ["paper-nvl72"])
