"""Profiles are read whatever stands in them, and what makes a run slow is said first."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dysharp
from dysharp.api.explaining import Difference, Explanation
from dysharp.api.profile_costs import _ByShape, _collective, interval, machine_for, replayed
from dysharp.base.errors import ConfigError, DysharpError
from dysharp.cli.entry import main
from dysharp.measured.intervals import Asked, interval_of
from dysharp.model.batch import StepBatch
from dysharp.model.formats import formats_of
from dysharp.profiles.reader import Call, _Scanner
from dysharp.profiles.recognise import kind_of, passes_of
from dysharp.profiles.spans import covered, idle, replay, shares, union, waits
from dysharp.serving.layout import ServeLayout
from dysharp.serving.step import step_time
from dysharp.serving.work import Replica
from dysharp.specs.catalog import load_cluster, load_whole
from tests.profiles.made import KERNELS, LAYERS, TOKENS, Rank, run_of, together, write

PLANTED = {
    "sleep": ({}, "rank 2 comes last", "its host or a sleep"),
    "unbalanced": ({}, "rank 1 comes last", "its experts have more rows"),
    "copy": ({}, "1 copies take 1,500 us", "Memcpy DtoD"),
    "nccl": ({"ep_library": "deepep"}, "NCCL and RCCL moved the rows", "not deepep"),
    "": ({}, "16 GEMMs with few rows (16) wait for weights", "times the rows take about as long"),
}  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_cause_is_named_first(tmp_path: Path, planted: str) -> None:
    asked, *words = PLANTED[planted]
    done = dysharp.explain(*write(tmp_path, run_of(tokens=TOKENS if planted else 16, planted=planted)), **asked)
    assert isinstance(done, Explanation)
    for word in words:
        assert word in done.losses[0].text


def test_a_call_in_which_the_host_stands_is_named(tmp_path: Path) -> None:
    """A launch that only comes late would come in time from a graph; behind a copy that waits, or a sleep, it would not."""
    traces = run_of(planted="sleep")
    gaps = [e for e in traces[2]["traceEvents"] if e["name"] == KERNELS["attention"]]
    stands = [{"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": e["ts"] - 903, "dur": 900.0, "args": {}} for e in gaps]
    stands = [one | {"pid": 0, "tid": 7} for one in stands]
    traces[2]["traceEvents"] += [*stands, stands[0] | {"cat": "python_function", "name": "deep", "ts": 0, "dur": 2e6}]
    every = dysharp.explain(*write(tmp_path, traces))
    one = dysharp.explain(str(tmp_path / "rank2.json"), what_if=("graph",))
    assert isinstance(every, Explanation)
    assert isinstance(one, Explanation)
    assert "rank 2 comes last" in every.losses[0].text
    assert "its host stands in cudaStreamSynchronize" in every.losses[0].text
    assert one.losses[0].text.startswith("the host stands in cudaStreamSynchronize: the GPU waits 3,6")
    assert "in 4 gaps" in one.losses[0].text
    assert "graph" not in one.losses[0].text
    ((_, graph),) = one.what_if
    assert graph == pytest.approx(one.span_us)


def test_a_thread_that_stands_beside_the_one_that_launches_is_no_cause(tmp_path: Path) -> None:
    """A thread of vLLM or SGLang waits for the end of a step (cudaEventSynchronize) while another launches its kernels, late: a graph helps."""
    late = run_of(planted="sleep")[2]
    waits = {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventSynchronize", "pid": 0, "tid": 8, "ts": 1e6, "dur": 1e6, "args": {}}
    late["traceEvents"].append(waits)
    done = dysharp.explain(*write(tmp_path, [late]), what_if=("graph",))
    assert isinstance(done, Explanation)
    assert done.losses[0].text.startswith("the host launches late: the GPU waits 3,6")
    assert done.what_if[0][1] == pytest.approx(done.span_us - 3600, rel=0.01)
    assert {*done.events[0].profile.stream.tolist()} == {0}  # threads take no numbers of streams


def test_a_run_without_a_cause_has_no_loss(tmp_path: Path) -> None:
    done = dysharp.explain(*write(tmp_path, run_of()))
    assert isinstance(done, Explanation)
    assert done.losses == ()
    assert done.layers == (LAYERS, 0)
    assert done.within == 1.0
    assert done.recognised == 1.0
    took = {one.operator: (one.kernels, round(one.us)) for one in done.operators}
    assert took["dispatch"] == (LAYERS, 160)
    assert took["EP wait"] == (LAYERS, 12)


def test_waits_are_told_from_movement_where_all_ranks_are_read(tmp_path: Path) -> None:
    files = write(tmp_path, run_of(planted="sleep"))
    every = dysharp.explain(*files)
    one = dysharp.explain(files[0])
    assert isinstance(every, Explanation)
    assert isinstance(one, Explanation)
    waited = {row.operator: row.wait for row in every.operators}
    assert waited["EP wait"] == pytest.approx(0.75 * 4 * 900)  # three of four ranks wait 900 us in each of four layers
    assert waited["combine"] == 0
    assert {row.wait for row in one.operators} == {None}
    assert "profiles of all ranks show whom they wait for" in one.losses[0].text


def test_two_runs_are_compared_by_operator(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (first,), (second,) = write(tmp_path, run_of(1)), write(tmp_path / "b", run_of(1, planted="copy"))
    done = dysharp.explain(first, second)
    assert isinstance(done, Difference)
    assert done.rows[0] == ("copy", 0.0, 1500.0)
    assert done.line == "the second run is 1,501 us (35%) longer: copy +1,500, idle +1 us"


def test_two_runs_of_unlike_sizes_are_two_runs(tmp_path: Path) -> None:
    """Rank 0 of 4 and rank 0 of 8 are no ranks of one run; equal runs name no operator."""
    (tmp_path / "b").mkdir()
    traces = [run_of(n)[0] for n in (4, 8)]
    step = {"ph": "X", "cat": "user_annotation", "ts": 1, "dur": 1}
    for number, trace in enumerate(traces, 1):
        trace["traceEvents"] += [step | {"name": f"ProfilerStep#{n}"} for n in range(number)]
    done = dysharp.explain(*write(tmp_path, traces[:1]), *write(tmp_path / "b", traces[1:]))
    assert isinstance(done, Difference)
    assert done.line == "the second run is 0 us (0%) longer"
    assert (done.first.steps, done.second.steps) == (1, 2)
    with pytest.raises(ConfigError, match="found 3 files of several runs or with equal ranks"):
        dysharp.explain(*write(tmp_path, [*run_of(4)[:2], run_of(1)[0]]))


def test_kernels_of_one_call_share_what_it_should_take(tmp_path: Path) -> None:
    """A GEMM and the sum of its split: as long as predicted together, or twice as long."""
    (trace,) = run_of(1)
    events = trace["traceEvents"]
    for event in [e for e in events if e["name"] == KERNELS["aten::mm"]]:
        whole, event["dur"] = event["dur"], 0.9 * event["dur"]
        events.append(event | {"name": "splitKreduce_kernel", "ts": event["ts"] + event["dur"], "dur": 0.1 * whole})
    row = next(one for one in _explained(tmp_path, trace).operators if one.operator == "GEMM")
    assert row.expected == pytest.approx(row.us)
    assert row.below_floor == 0
    for event in events:
        event["ts"], event["dur"] = 2 * event["ts"], 2 * event["dur"]
    slow = next(loss for loss in _explained(tmp_path, trace).losses if loss.text.startswith("GEMM"))
    assert slow.us == pytest.approx(row.us)


def _explained(folder: Path, trace: dict[str, Any], **asked: Any) -> Explanation:
    done = dysharp.explain(*write(folder, [trace]), **asked)
    assert isinstance(done, Explanation)
    return done


@pytest.mark.parametrize(("kind", "judged"), [("c10::Half", True), ("double", False), ("c10::complex<float>", False), ("signed char", False)])
def test_products_without_a_clock_are_not_judged(tmp_path: Path, kind: str, judged: bool) -> None:
    (trace,) = run_of(1)
    for event in trace["traceEvents"]:
        if event["name"] == "aten::mm":
            event["args"]["Input type"] = [kind] * 2
    rows = {row.operator: row.expected for row in _explained(tmp_path, trace).operators}
    assert (rows["GEMM"] is not None) == judged


@pytest.mark.parametrize(
    ("asked", "name"), [({"layout": "tp=8"}, "layout"), ({"batch": 8.0}, "batch"), ({"sequence": 9}, "sequence"), ({"precision": "fp8"}, "precision")]
)
def test_what_needs_a_model_is_not_ignored(tmp_path: Path, asked: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"found --{name} without --model, expected both"):
        dysharp.explain(*write(tmp_path, run_of(1)), **asked)


def test_a_model_without_experts_dispatches_no_rows(tmp_path: Path) -> None:
    """Its GEMMs were what those of the other model should take."""
    with pytest.raises(ConfigError, match=r"found llama3-8b, which has no experts, expected the model whose rows .* dispatches"):
        dysharp.explain(*write(tmp_path, run_of(1)), model="llama3-8b", layout="gpus=8")


def test_kernels_of_two_gpus_in_a_file_are_refused(tmp_path: Path) -> None:
    (trace,) = run_of(1)
    trace["traceEvents"] += [event | {"pid": 1} for event in trace["traceEvents"]]
    with pytest.raises(ConfigError, match="found kernels of 2 GPUs, expected one GPU a file"):
        dysharp.explain(*write(tmp_path, [trace]))


def test_a_copy_may_stand_on_a_process_of_its_own(tmp_path: Path) -> None:
    """As ROCm's profiles may have it: only kernels say how many GPUs a file has."""
    (trace,) = run_of(1)
    kernel = next(event for event in trace["traceEvents"] if event.get("cat") == "kernel")
    trace["traceEvents"].append(kernel | {"cat": "gpu_memcpy", "name": "CopyHostToDevice", "pid": 9})
    assert _explained(tmp_path, trace).losses


def test_an_exchange_that_is_hidden_is_no_loss(tmp_path: Path) -> None:
    """`links` gains nothing from it, either."""
    (trace,) = run_of(1)
    hidden = dict(next(event for event in trace["traceEvents"] if event["name"] == KERNELS["aten::mm"]))
    more = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Group size": 8, "dtype": "BFloat16", "stream": 20}
    hidden |= {"name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "args": more}
    trace["traceEvents"] = [*(e for e in trace["traceEvents"] if e["name"] != KERNELS["notify"]), hidden]
    done = _explained(tmp_path, trace)
    assert {row.operator: row.beside for row in done.operators}["all-reduce"] == 1.0
    assert done.losses == ()
    trace["traceEvents"] += [hidden | {"ts": hidden["ts"] + 1e5, "args": more | {"stream": stream}} for stream in (20, 21)]
    (loss,) = [one for one in _explained(tmp_path, trace).losses if one.kind == "slow"]  # beside another exchange nothing is hidden
    assert "(33% of it beside computing)" in loss.text


def test_changes_are_told_of_both_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = write(tmp_path, run_of(1))
    with pytest.raises(SystemExit):
        main(["explain", file, file, "--what-if", "graph"])
    said = capsys.readouterr().out
    assert "first: launches from a graph: 4,305 us" in said
    assert "second: launches from a graph: 4,305 us" in said


def test_waits_of_unequal_ranks_are_not_told(tmp_path: Path) -> None:
    traces = run_of(2)
    traces[1]["traceEvents"] = [e for e in traces[1]["traceEvents"] if e["name"] not in (KERNELS["notify"], KERNELS["dispatch"], KERNELS["combine"])]
    files = write(tmp_path, traces)
    done = dysharp.explain(*files)
    assert isinstance(done, Explanation)
    assert done.remarks == (
        "who waits for whom in dispatch, combine, EP wait is not told: unequal numbers, no common group, or sends from rank to rank",
    )
    with pytest.raises(ConfigError, match="found balanced and ranks whose exchanges are not equally many"):
        dysharp.explain(*files, what_if=("balanced",))


def test_some_ranks_of_a_run_do_not_say_who_comes_last_of_all(tmp_path: Path) -> None:
    done = dysharp.explain(*write(tmp_path, run_of(4, planted="sleep"))[1:3])
    assert isinstance(done, Explanation)
    assert done.losses[0].text.startswith("rank 2 comes last to EP wait of the 2 that were read, the others wait 3,600 us")


def _sums_of_pairs() -> list[dict[str, Any]]:
    """Ranks 0 and 1, and 2 and 3, sum 64 MiB together after each product; those of rank 3 take 300 us longer."""
    every, count = [Rank(n, 4) for n in range(4)], 1 << 25
    for _ in range(LAYERS):
        for one in every:
            one.run("aten::mm", 400 if one.rank == 3 else 100)
            one.run("attention", 30)
        for pair in (every[:2], every[2:]):
            together(pair, "nccl", 190)
            for one in pair:
                one.events[-1]["name"] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                said = {"Collective name": "allreduce", "In msg nelems": count, "Out msg nelems": count, "Group size": 2, "dtype": "BFloat16"}
                one.events[-1]["args"] |= said | {"Process Group Ranks": f"[{pair[0].rank}, {pair[1].rank}]"}
    return [one.trace for one in every]


def test_ranks_wait_for_those_of_their_process_group(tmp_path: Path) -> None:
    files = write(tmp_path, _sums_of_pairs())
    done = dysharp.explain(*files)
    assert isinstance(done, Explanation)
    assert done.losses[0].text.startswith("rank 3 comes last to all-reduce of ranks 2, 3, the others wait 1,200 us; its GEMM takes 4.0 times as long")
    (row,) = [one for one in done.operators if one.operator == "all-reduce"]
    assert (row.us, row.wait) == (pytest.approx(LAYERS * (190 + 300 / 4)), pytest.approx(LAYERS * 300 / 4))
    apart = dysharp.explain(files[0], files[2])
    assert isinstance(apart, Explanation)
    assert apart.remarks[0].startswith("who waits for whom in all-reduce is not told: ")
    traces = [json.loads(Path(file).read_text()) for file in files]
    for event in (event for trace in traces for event in trace["traceEvents"] if "AllReduce" in event["name"]):
        event["name"] = KERNELS["nccl"]
        event["args"] |= {"Collective name": "send", "Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]"}
    stages = dysharp.explain(*write(tmp_path, traces))
    assert isinstance(stages, Explanation)
    assert stages.remarks[0].startswith("who waits for whom in send and receive is not told: ")


@pytest.mark.parametrize(
    ("operator", "n", "members", "cluster", "GBps"),
    [
        ("all-reduce", 2, "[0, 8]", "hw-dgx-h100-x2", 50), ("all-gather", 4, "[1, 5, 9, 13]", "hw-dgx-h100-x2", 100),
        ("reduce-scatter", 64, "[0, 1, 2, 3, ..., 63]", "hw-dgx-h100-x8", 400), ("all-reduce", 2, "[0, 4]", "hw-dgx-h100-x2", 450),
        ("all-reduce", 2, "[0, 8]", "hw-dgx-h100", 0), ("all-gather", 8, "[4, 5, 6, 7, 8, 9, 10, 11]", "hw-dgx-h100-x2", 0),
    ],
)  # fmt: skip
def test_a_group_over_nodes_moves_rows_over_its_nics(operator: str, n: int, members: str, cluster: str, GBps: float) -> None:
    """PyTorch names the ranks of a group. A time is 1 to 1.6 times what its bytes take on NICs or links of members in a node;
    a group that no cluster or ring describes has none (GBps 0)."""
    count = (1 << 30) // (n if operator == "all-gather" else 1)
    named = {"In msg nelems": count, "Group size": n, "dtype": "BFloat16", "Process Group Ranks": members}
    found = _collective(machine_for(load_cluster(cluster), True), operator, named)
    if not GBps:
        assert found is None
    else:
        floor = (2 if operator == "all-reduce" else 1) * 2 * (1 << 30) * (n - 1) / n / (1e3 * GBps)
        assert found
        assert floor < found.us < 1.6 * floor


@pytest.mark.parametrize("key", ["In msg nelems", "Group size", "Process Group Ranks", "dtype", "Collective name"])
def test_a_collective_may_say_anything(tmp_path: Path, key: str) -> None:
    for value in (10**400, -5, 0, 1.5, "x", None, [], {}, True, 1 << 63, "[0, 8]", "[0]", "[8, 0]", "[0, 99999999999999999999]", "[0, 8, ..., 56]"):
        traces = _sums_of_pairs()
        for event in (event for trace in traces for event in trace["traceEvents"] if "AllReduce" in event["name"]):
            event["args"][key] = value
        for cluster in (None, "hw-dgx-h100-x2"):
            assert isinstance(dysharp.explain(*write(tmp_path, traces), cluster=cluster), Explanation)


def test_events_may_be_shorter_than_their_clock_tells(tmp_path: Path) -> None:
    """Microseconds since 1970 are floats 0.25 apart."""
    start, us = np.full(3, 2e15), np.array([0.1, 0.1, 8.0])
    assert replay(start, us, np.arange(3), us) == 2e15 + 8
    (trace,) = run_of(1)
    for event in trace["traceEvents"]:
        event["ts"], event["dur"] = event["ts"] + 2e15, 0.1
    done = dysharp.explain(*write(tmp_path, [trace]), model="qwen3-30b", layout="ep=4,gpus=4", what_if=("graph", "links=2"))
    assert isinstance(done, Explanation)
    trace["traceEvents"][0]["ts"] = 1e30
    far = dysharp.explain(*write(tmp_path, [trace]))
    assert isinstance(far, Explanation)
    assert far.recognised == 1.0


@pytest.mark.parametrize(("operator", "family"), [("GEMM", "dense-gemm"), ("attention", "attention"), ("norm", "operator")])
def test_an_interval_is_that_of_the_operator(operator: str, family: str) -> None:
    own = interval_of(Asked("kernels", family, "h100-sxm", 100.0))
    assert interval(machine_for(load_cluster("hw-dgx-h100"), False), operator, 100.0) == own != interval_of(Asked("kernels", "", "h100-sxm", 100.0))


def test_what_if_takes_away_what_it_says(tmp_path: Path) -> None:
    done = dysharp.explain(*write(tmp_path, run_of(planted="sleep")), what_if=("graph", "balanced", "links=2"))
    assert isinstance(done, Explanation)
    graph, balanced, links = (done.span_us - us for _, us in done.what_if)
    assert graph == pytest.approx(done.host_us)
    assert balanced == pytest.approx(2700)
    assert links == pytest.approx((done.exchange_us - 2700) / 2)  # faster links do not end a wait
    with pytest.raises(ConfigError, match="what-if: found 'magic', expected graph, balanced, links=FACTOR or system=NAME"):
        dysharp.explain(str(tmp_path / "rank0.json"), what_if=("magic",))


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "GEMM"),
        ("void deep_ep::internode_ll::dispatch<false>(void*)", "dispatch"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "EP wait"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-reduce"),
        ("void flash::flash_bwd_dq_dk_dv_loop_kernel<128>(Flash_bwd_params)", "attention backward"),
        ("fused_moe_kernel", "grouped GEMM"),
        ("void vllm::rms_norm_kernel<c10::BFloat16>()", "norm"),
        ("a kernel that nobody knows", ""),
    ],
)
def test_kernels_are_recognised_by_name(name: str, operator: str) -> None:
    assert kind_of(name).operator == operator


def test_arithmetic_of_spans() -> None:
    start, end = np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0])
    assert union(start, end).tolist() == [[0, 3], [5, 6]]
    assert covered(union(start, end), np.array([2.0, -1.0, 3.5]), np.array([5.5, 9.0, 4.0])).tolist() == [1.5, 4.0, 0.0]
    found = idle(np.array([0.0, 10.0, 30.0]), np.array([4.0, 5.0, 1.0]), np.array([np.nan, 9.0, 12.0]), np.zeros(3), np.empty((0, 3)))
    assert (found.us, found.host, found.stood.n, found.unknown.us) == (21.0, (6.0, 1, 6.0, 4.0, 0.0), 0, 0.0)  # the third was launched in time
    assert waits(np.array([[5.0, 2.0], [3.0, 7.0]])).tolist() == [[2.0, 0.0], [0.0, 5.0]]


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "found '' first, expected the JSON of a profile"),
    "text": (b"hello", "found 'h' first"),
    "other": (b'{"rows": [1, 2]}', "found no kernel of a GPU"),
    "host": (b'[{"ph": "X", "cat": "cpu_op", "name": "a", "args": {"External id": 1, "Input Dims": []}}]', "in 1 operators of the host"),
    "deep": (b"[" + b"[" * 100_000, "a value too deep or too long"),
    "comma": (b'{"traceEvents": [{"a": }]}', "malformed JSON"),
    "gzip": (gzip.compress(b'{"traceEvents": ')[:-9], "cannot be read"),
    "no time": (b'[{"ph": "X", "cat": "kernel", "name": "nvjet_x", "ts": 1, "dur": 0, "args": {}}]', "1 events of a GPU without a duration"),
    "convolutions": (
        b'[{"ph": "X", "cat": "kernel", "name": "cudnn::bn_fw", "ts": 1, "dur": 2, "args": {}}]',
        "found convolution, expected kernels of a transformer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_profile_is_refused_in_a_line(tmp_path: Path, kind: str) -> None:
    data, message = BROKEN[kind]
    (tmp_path / "p.json").write_bytes(data)
    with pytest.raises(ConfigError) as error:
        dysharp.explain(tmp_path / "p.json", cluster="hw-dgx-h100")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ep_library: found 'deepeep'; did you mean"):
        dysharp.explain(*write(tmp_path, run_of(1)), ep_library="deepeep")


def test_a_decode_step_should_take_what_serve_says(tmp_path: Path) -> None:
    """Two verbs, one answer; of the kernels of the made run attention has no shapes."""
    model, batch = load_whole("llama3-8b"), StepBatch(decodes=8, context=2048)
    replica = Replica(model, formats_of("bf16", model=model), ServeLayout(), machine_for(load_cluster("hw-dgx-h100"), False))
    done = dysharp.explain(*write(tmp_path, run_of(1)), model="llama3-8b", batch=8.0, sequence=2048)
    assert isinstance(done, Explanation)
    expected = {row.operator: row.expected for row in done.operators}
    assert expected["attention"] == step_time(replica, batch).parts["attention decode"]


def test_a_decode_step_of_several_ranks_needs_the_layout_of_its_server(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": "llama3-8b", "batch": 8.0, "sequence": 2048}
    files = write(tmp_path, run_of(4))
    with pytest.raises(ConfigError, match="found --batch and 4 ranks, expected the server's --layout, such as tp=4"):
        dysharp.explain(*files, **given)
    done = dysharp.explain(*files, layout="tp=4", **given)
    assert isinstance(done, Explanation)
    model, batch = load_whole("llama3-8b"), StepBatch(decodes=8, context=2048)
    parts = [step_time(Replica(model, formats_of("bf16", model=model), ServeLayout(n), machine_for(load_cluster("hw-dgx-h100"), False)), batch).parts
             for n in (4, 1)]  # fmt: skip
    assert {row.operator: row.expected for row in done.operators}["attention"] == parts[0]["attention decode"] < parts[1]["attention decode"]
    spread = dysharp.explain(*files, layout="dp=4,ep=4,slots=4", **(given | {"model": "qwen3-30b"}))
    assert isinstance(spread, Explanation)


def test_several_decode_steps_should_take_several_times_one(tmp_path: Path) -> None:
    """Four attention calls are a part of a step of 32 layers; 64 are two steps."""
    (one,), (many,) = run_of(1), run_of(1)
    events = many["traceEvents"]
    many["traceEvents"] = [event | {"ts": event["ts"] + 1e5 * n} for n in range(16) for event in events]
    found = [dysharp.explain(*write(tmp_path, [trace]), model="llama3-8b", batch=8.0) for trace in (one, many)]
    first, second = ({row.operator: row.expected for row in done.operators}["attention"] for done in found if isinstance(done, Explanation))
    assert first
    assert second == pytest.approx(2 * first)


def test_layers_with_two_kinds_of_attention_are_all_counted(tmp_path: Path) -> None:
    (trace,) = run_of(1)
    kernels = [event for event in trace["traceEvents"] if event["name"] == KERNELS["attention"]]
    for event in kernels[::2]:
        event["name"] = "fmhaSm100aKernel_PagedKvSliding"
    done = dysharp.explain(*write(tmp_path, [trace]))
    assert isinstance(done, Explanation)
    assert done.layers == (LAYERS, 0)


@pytest.mark.parametrize(("rows", "few"), [(16, True), (888, False)])
def test_rows_of_a_product_with_a_bias_are_those_of_its_operand(tmp_path: Path, rows: int, few: bool) -> None:
    """aten::addmm has its bias first and numbers last. On an H100 weights of 295 rows are read for as long as they are multiplied."""
    (trace,) = run_of(1)
    for event in trace["traceEvents"]:
        if event["name"] == "aten::mm":
            event["name"], event["args"]["Input Dims"] = "aten::addmm", [[128], [rows, 2880], [2880, 128], [], []]
            event["args"]["Input type"] = ["c10::BFloat16"] * 3 + ["Scalar"] * 2
    done = dysharp.explain(*write(tmp_path, [trace]))
    assert isinstance(done, Explanation)
    said = [loss.text for loss in done.losses if loss.kind == "batch"]
    assert [f"few rows ({rows})" in text for text in said] == [True] * few


def test_bytes_of_a_kernel_follow_from_what_its_call_reads_and_writes() -> None:
    shapes, n = _ByShape(machine_for(load_cluster("hw-dgx-h100"), False)), 1 << 28

    def us_of(name: str, *sizes: int, operator: str = "elementwise") -> float:
        found = shapes.of(operator, Call(name, tuple((size,) for size in sizes), ("c10::BFloat16",) * len(sizes)))
        return 0.0 if found is None else found.us

    one, two, three = (shapes.machine.memory(2.0 * n * times) for times in (1, 2, 3))
    assert us_of("aten::mul", n, n) == us_of("aten::add_", n, n) == three
    assert us_of("aten::copy_", n, n, operator="copy") == us_of("aten::neg", n) == two
    assert us_of("aten::mean", n) == us_of("aten::fill_", n) == one
    assert us_of("aten::mm", n, n, operator="copy") == us_of("aten::index", n, 8) == 0  # its inputs do not say it
    assert shapes.of("elementwise", Call("aten::add_", ((), ()), ("long", "Scalar"))) is None  # one number, in place: no shape at all


def test_types_of_collectives_have_their_own_names() -> None:
    machine = machine_for(load_cluster("hw-dgx-h100"), False)
    us = {name: one.us for name in ("Half", "BFloat16", "Byte", "Float", "Long")
          if (one := _collective(machine, "all-reduce", {"In msg nelems": 1 << 28, "Group size": 8, "dtype": name}))}  # fmt: skip
    assert us["Half"] == us["BFloat16"]
    assert us["Byte"] < us["Half"] < us["Float"] < us["Long"]


@pytest.mark.parametrize(
    ("gpu", "cluster"),
    [("NVIDIA A100-SXM4-80GB", "hw-dgx-a100"), ("NVIDIA H100 80GB HBM3", "hw-dgx-h100"), ("AMD Instinct MI300X VF", "hw-mi300x"),
     ("NVIDIA H100 PCIe", ""), ("NVIDIA GeForce RTX 4090", ""), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "hw-pcie-rtx-pro-6000")],
)  # fmt: skip
def test_a_gpu_is_known_by_the_words_of_its_driver(tmp_path: Path, gpu: str, cluster: str) -> None:
    (trace,) = run_of(1)
    trace["deviceProperties"][0]["name"] = gpu
    if cluster:
        done = dysharp.explain(*write(tmp_path, [trace]))
        assert isinstance(done, Explanation)
        assert done.cluster == cluster
    else:
        with pytest.raises(ConfigError, match="expected --cluster"):
            dysharp.explain(*write(tmp_path, [trace]))


def test_one_rank_does_not_say_what_it_waits(tmp_path: Path) -> None:
    """Kernels that only wait are gone without waits; other exchanges of one rank may wait or move."""
    (trace,) = run_of(1)
    done = dysharp.explain(*write(tmp_path, [trace]), what_if=("balanced",))
    assert isinstance(done, Explanation)
    assert done.what_if[0][1] == pytest.approx(done.span_us - 3 * LAYERS)
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event["name"] != KERNELS["notify"]]
    with pytest.raises(ConfigError, match="found balanced and one rank"):
        dysharp.explain(*write(tmp_path, [trace]), what_if=("balanced",))


def test_a_gpu_without_a_cluster_is_asked_for(tmp_path: Path) -> None:
    (trace,) = run_of(1)
    trace["deviceProperties"] = []
    with pytest.raises(ConfigError, match="found the GPU 'unnamed', expected --cluster"):
        dysharp.explain(*write(tmp_path, [trace]))


def test_a_file_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (file,) = write(tmp_path, run_of(1))
    text = Path(file).read_text()
    Path(file).write_text(text[: int(0.9 * len(text))])
    done = dysharp.explain(file, cluster="hw-dgx-h100")
    assert isinstance(done, Explanation)
    assert done.remarks == (f"{file}: the file ends before its events do",)


MUTATIONS: list[Callable[[random.Random, dict[str, Any]], Any]] = [
    lambda r, e: e.update({r.choice(["ts", "dur"]): r.choice([float("nan"), float("inf"), -5, "x", None, [], {}, 1e308, "7"])}),
    lambda r, e: e.update(args=r.choice([None, [], "x", {"External id": "a", "stream": None, "correlation": -1}, {"External id": 1 << 70}])),
    lambda r, e: e.update(name=r.choice([None, 7, "", "\x1b[31m", "x" * 100_000, ["a"]])),
    lambda r, e: e["args"].update({"Input Dims": r.choice([None, 3, [[1, "a"]], [[-1]], [[1 << 62, 1 << 62]], [[]]])}),
    lambda r, e: e.update(cat=r.choice(["kernel", "gpu_memcpy", None, [], "cuda_runtime"]), ph=r.choice(["X", "B", None])),
    lambda r, e: e.pop(r.choice([*e])),
]


@pytest.mark.slow
def test_five_hundred_damaged_files_end_in_a_line_or_an_answer(tmp_path: Path) -> None:
    r, whole = random.Random(56), json.dumps(run_of(1)[0])
    file, outcomes = tmp_path / "p.json", set()
    for number in range(500):
        trace = json.loads(whole)
        for event in r.sample(trace["traceEvents"], 5):
            r.choice(MUTATIONS)(r, event)
        data = json.dumps(trace).encode()
        if number % 5 == 0:
            at = r.randrange(len(data))
            data = data[:at] + r.choice([b"", b"\x00\xff", b"}", b"]", data[at : at + 50], b'"']) + data[at + r.randrange(9) :]
        file.write_bytes(data)
        try:
            dysharp.explain(file, cluster="hw-dgx-h100")
            outcomes.add("answer")
        except DysharpError as error:
            assert "\n" not in str(error)
            outcomes.add("line")
    assert outcomes == {"answer", "line"}


def test_spans_at_once_have_equal_parts() -> None:
    """Two of three spans share four microseconds; the third is alone. Shares add up to the union."""
    start, end = np.array([0.0, 2.0, 8.0]), np.array([6.0, 6.0, 9.0])
    assert shares(start, end).tolist() == [4.0, 2.0, 1.0]


def test_what_a_run_computes_again_follows_from_counts() -> None:
    """DeepSeek-V3 has 4 norms and 8 dense products a layer; its run has 8 forward norms and 19 GEMMs, Megatron-LM's plain one has 4 and 24."""
    model, layers = load_whole("deepseek-v3"), 4
    apart = Counter({"GEMM": 19 * layers, "weight gradients": 15 * layers})
    assert replayed(model, apart, 8 * layers, layers) == ("layernorm", "mla_up_proj")
    assert replayed(model, Counter({"GEMM": 24 * layers}), 4 * layers, layers) == ()


def test_a_replay_shortens_what_waited_alone() -> None:
    """Two streams: the second event of the first one waited for the exchange, the third did not."""
    start, us, stream = np.array([0.0, 10.0, 31.0, 40.0]), np.array([10.0, 20.0, 9.0, 5.0]), np.array([0, 1, 0, 0])
    assert replay(start, us, stream, us) == 45
    assert replay(start, us, stream, np.array([10.0, 5.0, 9.0, 5.0])) == 30
    assert replay(start, us, stream, np.array([10.0, 60.0, 9.0, 5.0])) == 85


@pytest.mark.parametrize("seed", range(5))
def test_a_replay_of_what_was_measured_is_what_was_measured(seed: int) -> None:
    """Overlaps in a stream and events without a duration, as in files with whole microseconds, change nothing."""
    rng = np.random.default_rng(seed)
    start, us, stream = np.sort(rng.integers(0, 200, 300)).astype(float), rng.integers(0, 9, 300).astype(float), rng.integers(0, 3, 300)
    assert replay(start, us, stream, us) == (start + us).max()


def test_another_ep_system_moves_the_rows_of_a_measured_step(tmp_path: Path) -> None:
    """A row to each of 8 experts in place of about 5 GPUs takes longer, switches at their best less. Nothing is answered without a layout."""
    files = write(tmp_path, run_of(1))
    asked: dict[str, Any] = {"model": "deepseek-v3", "layout": "ep=8,gpus=8"}
    done = dysharp.explain(*files, what_if=("system=deepep", "system=alltoall", "system=dysharp"), **asked)
    assert isinstance(done, Explanation)
    (_, same), (_, longer), (name, best) = done.what_if
    assert same == pytest.approx(done.span_us)
    assert best < done.span_us < longer
    assert name == "rows moved by dysharp, at its best"
    (simulated,) = dysharp.explain(*files, what_if=("system=deepep-v2",), sequence=64, **asked).to_dict()["what_if"]
    assert simulated[1] != pytest.approx(done.span_us)
    with pytest.raises(ConfigError, match="found deepep-v2, which is simulated, on 64 GPUs, expected 8 of a domain at most"):
        dysharp.explain(*files, what_if=("system=deepep-v2",), model="deepseek-v3", layout="ep=64,gpus=64", cluster="hw-dgx-h800-x8")
    with pytest.raises(ConfigError, match="what-if: found a system without --model and --layout"):
        dysharp.explain(*files, what_if=("system=deepep",))


def test_a_cast_on_the_stream_of_dispatch_halves_its_rows(tmp_path: Path) -> None:
    """Rows in FP8 have scales: 1 + 4 / 128 bytes a value in place of 2; the hop between nodes stays."""
    (trace,) = run_of(1)
    asked: dict[str, Any] = {"model": "deepseek-v3", "layout": "ep=64,gpus=64", "cluster": "hw-dgx-h800-x8"}
    events = trace["traceEvents"]
    last = max(e["ts"] + e["dur"] for e in events)
    back = {"ph": "X", "cat": "kernel", "name": "flash_bwd", "pid": 0, "tid": 7, "ts": last, "dur": 9, "args": {"stream": 7}}
    took = []
    for name in ("nvjet_x", "per_token_group_quant_fp8"):
        trace["traceEvents"] = [*events, back, back | {"name": name}]
        done = dysharp.explain(*write(tmp_path, [trace]), **asked)
        assert isinstance(done, Explanation)
        took.append({row.operator: row.expected or 0.0 for row in done.operators})
    hops = (LAYERS + 1) * 8.0
    assert (took[1]["dispatch"] - hops) / (took[0]["dispatch"] - hops) == pytest.approx((1 + 4 / 128) / 2)
    assert took[1]["combine"] == took[0]["combine"]


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("FFFF", "4 attention calls"),
        ("FFFFBBBB", "1 micro-batch of 4 layers, forward and backward"),
        ("FFFFFFFFBBBBBBBB" + "FFFFBBBB", "3 micro-batches of 4 layers, forward and backward"),
        ("FBFBFB", "3 layers forward beside 3 backward: pairs of two micro-batches"),
        ("FFF" + "FBFBFB", "3 layers, whose attention runs again in the backward pass"),
        ("FFFBB", "3 attention calls forward, 2 backward"),
    ],
)
def test_the_order_of_attention_calls_says_what_runs(order: str, words: str) -> None:
    assert passes_of(order) == words


def test_layers_lie_between_attention_calls(tmp_path: Path) -> None:
    """The third layer of the run has an extra copy behind its attention."""
    done = dysharp.explain(*write(tmp_path, run_of(1, planted="copy")))
    assert isinstance(done, Explanation)
    assert len(done.layer_us) == LAYERS
    assert [layer.get("copy", 0.0) for layer in done.layer_us] == [0, 0, 1500, 0]
    events = 1 + 4 + 4  # attention, experts with their exchanges, products of the next layer: a microsecond behind each
    assert done.layer_us[0]["idle"] == pytest.approx(events)
    assert done.layer_us[0]["whole"] == pytest.approx(sum(us for name, us in done.layer_us[0].items() if name != "whole"))


def test_a_file_that_waits_is_refused() -> None:
    class Waits(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return None  # type: ignore[return-value]  # as a file of /proc that has nothing to say yet

    with pytest.raises(ConfigError, match="expected a file that does not wait"):
        list(_Scanner(Waits(), "kmsg").values())
