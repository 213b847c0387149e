"""A collective as the workload of the verbs: run, compare, trace, emulate, conformance, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest

import dysharp
from dysharp.analysis import Row
from dysharp.base.errors import ConfigError, EmulationMismatch
from dysharp.functional.collective import _Vectors, emulate_collective
from dysharp.specs import load_cluster
from dysharp.systems.collectives import all_collectives, get_collective
from dysharp.testing.conformance import conformance
from dysharp.workload.collective import even

NODE = {"cluster": "hw-dgx-h100", "gpus": 4}


def test_run_gives_a_row_of_the_collective() -> None:
    row = dysharp.run("nccl-ring", workload="all-reduce:1MiB", **NODE)
    assert row.workload == "all-reduce of 1 MiB in bf16"
    assert (row.model, row.tokens_per_gpu, row.gpus) == ("", 0, 4)
    assert row.workload_bound_us < row.bound_us < row.time_us
    assert list(row.phases_us) == ["reduce", "gather", "other"]
    assert row.traffic_bytes["up"]["reduce"] == 3 << 20
    assert Row.from_dict(row.to_dict()).time_us == row.time_us
    assert "time" in str(row)


def test_both_levels_run_a_collective() -> None:
    burst, packet = (dysharp.run("nvls-two-shot", workload="all-reduce:256KiB", fidelity=level, **NODE) for level in ("burst", "packet"))
    assert packet.time_us == pytest.approx(burst.time_us, rel=0.05)


def test_compare_takes_all_systems_that_run_the_collective() -> None:
    done = dysharp.compare(workload="all-reduce:1MiB", **NODE)
    running = [name for name, one in all_collectives().items() if "all-reduce" in one.operations]
    assert [row.system for row in done.rows] == running
    assert done.sentence.startswith("Fastest is ")


def test_trace_shows_the_operators_of_the_collective() -> None:
    done = dysharp.trace("nccl-ring", workload="all-gather:64KiB", **NODE)
    assert [track.name for track in done.timeline.tracks if track.gpu == 0 and track.group == "operators"] == ["gather", "other"]
    assert "all-gather of 64 KiB" in done.words


@pytest.mark.parametrize("name", all_collectives())
def test_emulated_vectors_are_right(name: str) -> None:
    for operation in get_collective(name).operations:
        done = dysharp.emulate(name, workload=f"{operation}:8KiB", order="trace", **NODE)
        assert done.holds, done


def test_a_lost_edge_makes_a_vector_wrong_or_the_machine_stop() -> None:
    cluster, work = load_cluster("hw-dgx-h100").with_gpus(4), even("all-reduce", 64, 4)
    program = get_collective("nccl-ring").plan(work, cluster, get_collective("nccl-ring").options())
    keep = np.ones(len(program.edges.tail), bool)
    keep[np.flatnonzero(program.edges.tail_kind == 3)] = False  # no step waits for what arrives
    e = program.edges
    broken = replace(program, edges=type(e)(*(column[keep] for column in (e.tail_kind, e.tail, e.head_kind, e.head))))
    try:
        assert not emulate_collective("nccl-ring", broken, work, order="late-delivery").holds
    except EmulationMismatch as error:
        assert "found no chunk" in str(error)


def test_a_vector_that_nobody_writes_is_named() -> None:
    cluster, work = load_cluster("hw-dgx-h100").with_gpus(2), even("all-gather", 64, 2)
    program = get_collective("nccl-ring").plan(work, cluster, get_collective("nccl-ring").options())
    lost = replace(program, templates=tuple(replace(t, dst="scratch.sum") if t.dst == "result" else t for t in program.templates))
    with pytest.raises(EmulationMismatch, match='GPU 0: found no chunk 0 in "result" at the end'):
        _Vectors(lost, work, work.inputs(0), "oldest", 0, None).run()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"tokens": 8}, "tokens: found 8 beside a workload, expected none"),
        ({"direction": "both"}, "direction: found 'both' beside a workload"),
        ({"cluster": "paper-gh200-nvl32"}, 'found "paper-gh200-nvl32", expected an hw-\\* cluster'),
        ({"workload": "all-reduce:1MB"}, "found size '1MB'"),
        ({"workload": "all-to-all:1MiB"}, "nccl-ring: found all-to-all, expected all-reduce or"),
        ({"options": {"protocl": "ll"}}, "option nccl-ring.protocl: unknown"),
        ({"gpus": 0}, "gpus: found 0, expected at least 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        dysharp.run("nccl-ring", **{"workload": "all-reduce:1MiB", **NODE, **arguments})


def test_a_system_of_collectives_wants_a_workload() -> None:
    with pytest.raises(ConfigError, match="'deepep': found a system of MoE layers, expected one of collectives or sub-layers"):
        dysharp.run("deepep", workload="all-reduce:1MiB")
    with pytest.raises(ConfigError, match="found a system of collectives, expected a collective for it"):
        dysharp.run("nccl-ring")
    with pytest.raises(ConfigError, match="tuned: found it beside a workload"):
        dysharp.compare(workload="all-reduce:1MiB", tuned=True, **NODE)
    with pytest.raises(ConfigError, match="hidden: found 8 beside a workload"):
        dysharp.emulate("nccl-ring", workload="all-reduce:1MiB", hidden=8, **NODE)


@pytest.mark.sampled
@pytest.mark.parametrize("name", all_collectives())
def test_every_system_conforms(name: str) -> None:
    report = conformance(name)
    assert report, str(report)


def test_pages_and_pictures_name_the_collective() -> None:
    from dysharp.show.html_report import render, report_of_comparison
    from dysharp.show.plots import plot_compare

    done = dysharp.compare(["nccl-ring", "nvls-two-shot"], workload="all-reduce:64KiB", **NODE)
    page = render(report_of_comparison(done, "dysharp compare"))
    assert "2 systems on all-reduce of 64 KiB in bf16, 4 GPUs" in page
    assert "tokens per GPU" not in page
    axes = plot_compare(done.rows)
    assert axes.get_xlabel() == "time of the collective (us)"
    assert axes.get_title(loc="left") == "all-reduce of 64 KiB in bf16, 4 GPUs of hw-dgx-h100"


def test_sub_layers_in_paper_form_have_a_baseline_of_their_form() -> None:
    done = dysharp.compare(["sp-nvls", "tp-nvls"], workload="sub-layer:llama-7b:L1", gpus=2)
    assert done.baselines == {"paper": "sp-nvls"}
    assert done.sentence.startswith("Fastest is sp-nvls")
