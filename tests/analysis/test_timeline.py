"""A timeline repeats the numbers of its run: sums of slices are the Row's busy times, flows are complete, the file reads back."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import dysharp
from dysharp.analysis import Row
from dysharp.analysis.timeline import Timeline, make_timeline, record
from dysharp.analysis.timeline.counters import _inside
from dysharp.analysis.timeline.flows import TokenFlow
from dysharp.api.timed import Timed
from dysharp.base.errors import ConfigError
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.workload import make_routing, needed_gpus

GPUS, TOKENS = 4, 32
SYSTEMS = ("dysharp", "deepep", "nvls", "comet", "megatron-ag")


@pytest.fixture(scope="module", params=SYSTEMS)
def timed(request: pytest.FixtureRequest) -> Timed:
    return dysharp.trace(request.param, gpus=GPUS, tokens=TOKENS)


def _sums(line: Timeline, group: str) -> dict[tuple[int, str], int]:
    sums = line.sums_ps().tolist()
    return {(t.gpu, t.name): ps for t, ps in zip(line.tracks, sums, strict=True) if t.group == group}


def test_the_run_is_that_of_run(timed: Timed) -> None:
    assert timed.row.digest == dysharp.run(timed.row.system, gpus=GPUS, tokens=TOKENS).digest


@pytest.mark.parametrize("side", ["up", "down"])
def test_slices_of_links_sum_to_the_utilization(timed: Timed, side: str) -> None:
    """A link sums to its wire bytes over its rate, rounded down once: less than one picosecond a link is lost."""
    line, row = timed.timeline, timed.row
    busy = [sum(ps for (gpu, _), ps in _sums(line, f"{side} link").items() if gpu == node) for node in range(GPUS)]
    exact = [row.utilization[side] * line.time_ps * GPUS, row.utilization[f"{side}_max"] * line.time_ps]
    assert -1e-3 <= exact[0] - sum(busy) < GPUS + 1e-3
    assert -1e-3 <= exact[1] - max(busy) < 1 + 1e-3


def test_slices_of_operators_sum_to_the_phases(timed: Timed) -> None:
    sums, row = _sums(timed.timeline, "operators"), timed.row
    phases = {name: round(phase["busy"] * 1e6) for name, phase in row.phases_us.items() if phase["busy"]}
    assert any({name: sums[gpu, name] for name in phases if (gpu, name) in sums} == phases for gpu in range(GPUS))
    line = timed.timeline
    of_operators = np.isin(line.slices.track, [n for n, track in enumerate(line.tracks) if track.group == "operators"])
    assert of_operators.any()
    assert (line.slices.token[of_operators] == -1).all()  # an operator serves many tokens


@pytest.mark.parametrize(("name", "key"), [("SM slots in use", "sm"), ("up link use", "up"), ("down link use", "down")])
def test_counters_of_use_have_the_utilization_as_mean(timed: Timed, name: str, key: str) -> None:
    line, row = timed.timeline, timed.row
    use = [int((np.diff(np.append(c.at, line.time_ps)) * c.value).sum()) for c in line.counters if c.name == name]
    assert sum(use) / 100 / GPUS / line.time_ps == pytest.approx(row.utilization[key], abs=0.005)  # whole percents


def test_slices_of_a_track_do_not_overlap(timed: Timed) -> None:
    s = timed.timeline.slices
    same = s.track[1:] == s.track[:-1]
    assert (s.end > s.start).all()
    assert (s.start[1:] >= s.end[:-1])[same].all()


@pytest.mark.parametrize("system", ["dysharp", "deepep"])
def test_the_flow_of_a_token_is_complete(system: str) -> None:
    """Each GPU with experts of the token is a flow: dispatch up and down, both GEMMs of each expert, combine back."""
    token = 37
    done = dysharp.trace(system, gpus=GPUS, tokens=TOKENS, follow=(token,))
    line, routing = done.timeline, make_routing(load_model("deepseek-v2-lite").routing, load_model("deepseek-v2-lite"), GPUS, TOKENS)
    needed, home = np.flatnonzero(needed_gpus(routing)[token]).tolist(), token // TOKENS
    assert [flow.gpu for flow in line.flows if flow.token == token] == needed
    for flow in line.flows:
        places = list(flow.slices)
        names = [(line.tracks[line.slices.track[i]], line.names[line.slices.name[i]]) for i in places]
        assert (np.diff(line.slices.start[places]) >= 0).all()
        experts = [int(e) for e in routing.expert[token] if routing.slot[token][list(routing.expert[token]).index(e)] // (64 // GPUS) == flow.gpu]
        for gemm in ("gemm1", "gemm2"):
            assert {n for t, n in names if t.group == "SMs" and n.startswith(gemm)} == {f"{gemm} expert {e}" for e in experts}
        if flow.gpu != home:
            ends = {(t.gpu, t.group, t.name) for t, _ in names}
            back = ("combine responses", "combine results") if system == "dysharp" else ("combine data", "combine data")
            assert {(home, "up link", "dispatch data"), (flow.gpu, "down link", "dispatch data")} <= ends
            assert {(flow.gpu, "up link", back[0]), (home, "down link", back[1])} <= ends


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_the_file_reads_back(tmp_path: Path, ending: str) -> None:
    """The protobuf library finds the slices, the flows, the names and the counters of the Timeline."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    done = dysharp.trace("dysharp", gpus=GPUS, tokens=TOKENS)
    line = done.timeline
    data = done.save(tmp_path / f"run.perfetto-trace{ending}").read_bytes()
    read = Trace.FromString(gzip.decompress(data) if ending else data)
    names = {e.iid: e.name for packet in read.packet for e in packet.interned_data.event_names}
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in read.packet if p.HasField("track_descriptor")}
    open_at: dict[int, tuple[int, str]] = {}
    sums: dict[int, int] = {}
    found, flows, whole, values = [], [], [], 0
    for packet in (p for p in read.packet if p.HasField("track_event")):
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_at
            open_at[event.track_uuid] = packet.timestamp, event.name or names[event.name_iid]
            flows += list(event.flow_ids)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            start, name = open_at.pop(event.track_uuid)
            if "1 ms here is 1 us simulated" in tracks[event.track_uuid].name:
                whole.append((start, packet.timestamp, name))
                continue
            sums[event.track_uuid] = sums.get(event.track_uuid, 0) + packet.timestamp - start
            found.append((event.track_uuid, start, packet.timestamp, name))
        else:
            values += 1
    assert not open_at
    assert whole == [(0, line.time_ps, f"{done.row.time_us:.2f} us")]
    s = line.slices
    texts = [line.names[i] for i in s.name.tolist()]
    assert sorted(found) == sorted(zip((s.track + 1).tolist(), s.start.tolist(), s.end.tolist(), texts, strict=True))
    assert [tracks[i + 1].name for i in range(len(line.tracks))] == [t.name for t in line.tracks]
    assert [sums[i + 1] for i in range(len(line.tracks))] == line.sums_ps().tolist()
    assert sorted(flows) == sorted(f.id for f in line.flows for _ in f.slices)
    assert values == sum(len(c.at) for c in line.counters)


def test_a_window_of_time_keeps_what_overlaps() -> None:
    whole = dysharp.trace("deepep", gpus=GPUS, tokens=TOKENS).timeline.slices
    part = dysharp.trace("deepep", start_us=2.0, end_us=3.0, gpus=GPUS, tokens=TOKENS).timeline.slices
    assert 0 < len(part) < len(whole)
    assert len(part) == int(((whole.start < 3_000_000) & (whole.end > 2_000_000)).sum())


def test_busy_times_are_those_inside_the_window() -> None:
    """No track is busy longer than the window, and windows side by side sum to the whole."""
    cuts = (0.0, 2.0, 3.0, None)
    parts = [dysharp.trace("deepep", start_us=a, end_us=b, gpus=GPUS, tokens=TOKENS).busy() for a, b in pairwise(cuts) if a is not None]
    whole = dysharp.trace("deepep", gpus=GPUS, tokens=TOKENS).busy()
    assert max(most for *_, most in parts[1]) <= 1.0
    for name, *same in zip((one[:2] for one in whole), whole, *parts, strict=True):
        assert {one[:2] for one in same} == {name}
        assert same[0][2] == pytest.approx(sum(one[2] for one in same[1:]))
    with pytest.raises(ConfigError, match="expected a begin before its end at"):
        dysharp.trace("deepep", start_us=500.0, gpus=GPUS, tokens=TOKENS)


def test_busy_times_of_some_tokens_leave_out_what_names_no_token() -> None:
    tracks = {one[:2] for one in dysharp.trace("deepep", only=(5,), gpus=GPUS, tokens=TOKENS).busy()}
    assert tracks == {(link, data) for link in ("up link", "down link") for data in ("dispatch data", "combine data")}


def test_a_window_of_tokens_keeps_their_trains_and_tiles() -> None:
    line = dysharp.trace("deepep", only=(5,), gpus=GPUS, tokens=TOKENS).timeline
    assert set(line.slices.token.tolist()) == {5, -1}
    kept = {line.tracks[i].group for i in line.slices.track[line.slices.token < 0]}
    assert kept == {"SMs"}


def _times(line: Timeline, flow: TokenFlow) -> list[tuple[int, int]]:
    return [(int(line.slices.start[i]), int(line.slices.end[i])) for i in flow.slices]


def test_neighbours_join_where_there_are_too_many() -> None:
    model, cluster = load_model("deepseek-v2-lite"), load_cluster("paper-gh200-nvl32").with_gpus(GPUS)
    routing, system = make_routing(model.routing, model, GPUS, TOKENS), get_system("deepep")
    run = record(system.plan(model, cluster, routing, "fwd", system.options()))[0]
    many, few = make_timeline(run, routing, follow=(3,)), make_timeline(run, routing, follow=(3,), most_slices=500)
    assert few.merged
    assert len(few.slices) < len(many.slices) / 2
    assert (few.slices.start[1:] >= few.slices.end[:-1])[few.slices.track[1:] == few.slices.track[:-1]].all()
    assert few.sums_ps().tolist() == many.sums_ps().tolist()
    assert [_times(few, flow) for flow in few.flows] == [_times(many, flow) for flow in many.flows]  # slices of a flow stay apart


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"fidelity": "packet"}, 'expected "burst"'),
        ({"direction": "both"}, 'expected "fwd" or "bwd"'),
        ({"start_us": 3.0, "end_us": 2.0}, "rising interval"),
        ({"only": (4096,)}, "expected 0 to 127"),
    ],
)
def test_what_has_no_timeline_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dysharp.trace("deepep", gpus=GPUS, tokens=TOKENS, **wrong)  # type: ignore[arg-type]


def test_late_and_backward_runs_have_a_timeline() -> None:
    row: Row = dysharp.trace("dysharp", gpus=GPUS, tokens=TOKENS, direction="bwd", start="fixed:5").row
    assert row.skew


def test_the_picture_has_a_row_for_each_gpu() -> None:
    from dysharp.show.timeline import plot_timeline

    axes = plot_timeline(dysharp.trace("deepep", gpus=GPUS, tokens=TOKENS).timeline)
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"GPU {i}" for i in range(GPUS)]


def test_intervals_that_hold_an_edge_are_counted() -> None:
    """GPU 0: 0 to 10 and 5 to 20; GPU 1: nothing; GPU 2: 12 to 13. An interval holds its begin and not its end."""
    begin, end, gpu, edges = (np.array(column) for column in ([0, 5, 12], [10, 20, 13], [0, 0, 2], [0, 5, 10, 12, 20]))
    found = _inside(begin, end, gpu, edges, "tokens in flight", 3)
    assert [(c.gpu, c.name, c.value.tolist()) for c in found] == [
        (0, "tokens in flight", [1, 2, 1, 1, 0]),
        (2, "tokens in flight", [0, 0, 0, 1, 0]),
    ]
