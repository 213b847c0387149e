"""`building/experts.py` with one fault each breaks a rule that holds for every layer with surroundings."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from dysharp.base.arrays import I64
from dysharp.engine.burst.run import run_burst
from dysharp.program import Program, Trace
from dysharp.program.schema import BESIDE
from dysharp.specs import Model, load_cluster
from dysharp.systems import get_system
from dysharp.systems.building import experts as around
from dysharp.systems.building.gpus import Software
from dysharp.workload import make_routing
from tests.interpreters.mutants import Mutant

AROUND = "systems.building.experts"
MODEL = Model("small", hidden=2048, expert_hidden=256, n_experts=8, topk=2, tokens_per_gpu=256, n_matrices=3, element_bytes=2, gemm_dtype="fp8")
MUTANTS = (
    Mutant("starts of the first stage lost", AROUND, "None, self.starts[0],", "None, 1,"),
    Mutant("no start of a group", AROUND, "after, self.starts[0] + self.permutes", "after, self.permutes"),
    Mutant("no start of the second stage", AROUND, "after, self.starts[1] + forward", "after, int(forward)"),
    Mutant("activation in every pass", AROUND, 'self.layer.direction == "fwd"', "True"),
    Mutant(
        "activation of all rows",
        AROUND,
        "activation_bytes(self.layer.model, self.rows)",
        "activation_bytes(self.layer.model, self.rows * 0 + self.rows.sum())",
    ),
    Mutant("groups cast all rows", AROUND, "if tiles is not None else", "if tiles is None else"),
    Mutant("the scatter moves received rows", AROUND, "self.layer.p.row_source", "self.layer.p.row_gpu"),
    Mutant("a kernel does not wait for its start", AROUND, "layer.wait_each(run, after, *also)", "layer.wait_each(run, *also)"),
    Mutant("a start waits for nothing", AROUND, "            layer.wait_each(start, after)\n", ""),
    Mutant("casts do not wait for rows", AROUND, "        layer.wait_tiles(cast, layer.tiles)\n", ""),
    Mutant("casts do not wait for the kernel", AROUND, "        layer.wait_each(cast, begun[layer.tile_gpu])\n", ""),
    Mutant("tiles do not wait for their casts", AROUND, "        layer.wait_each(first, cast)\n", ""),
    Mutant("a cast takes the time of one SM with all memory", AROUND, "stream_ps(n * layer.cluster.own_gpu.datasheet.n_sms)", "stream_ps(n)"),
)


class Layer:
    """One pass that was run, its ops by template, and its times."""

    def __init__(self, name: str, direction: str) -> None:
        chosen, self.cluster = get_system(name), load_cluster("hw-dgx-h100").with_gpus(4)
        self.routing = make_routing("lognormal:1.0", MODEL, 4, MODEL.tokens_per_gpu)
        self.costs = Software(self.cluster)
        self.program: Program = chosen.plan(MODEL, self.cluster, self.routing, direction, chosen.options())
        self.trace: Trace = run_burst(self.program)[0]
        self.templates = np.array([t.name for t in self.program.templates])[self.program.ops.template]
        self.beside = np.array([t.fn == BESIDE for t in self.program.templates])[self.program.ops.template]

    def ops(self, name: str) -> I64:
        return np.flatnonzero(self.templates == name)

    def took(self, name: str) -> I64:
        return (self.trace.done - self.trace.issue)[self.ops(name)]

    def starts(self) -> int:
        """Starts of kernels on one GPU."""
        mine = [i for i in np.flatnonzero(self.beside) if self.templates[i].endswith(".start") and self.program.ops.node[i] == 0]
        return round(float((self.trace.done - self.trace.issue)[mine].sum()) / self.costs.kernel_ps)

    def rows(self) -> I64:
        """Expert rows of each GPU."""
        return np.bincount((self.routing.slot // self.routing.placement.slots_per_gpu).ravel(), minlength=4)


def comet(direction: str) -> None:
    """Starts, casts behind their rows and their kernel, tiles behind their casts, the activation of the own rows behind all first GEMMs."""
    layer, first = Layer("comet", direction), {"fwd": "gemm1", "bwd": "gemm2_dgrad"}[direction]
    p, t = layer.program, layer.trace
    assert layer.starts() == {"fwd": 3, "bwd": 4}[direction]
    cast, begin = layer.ops("around.cast"), layer.ops("around.begin.start")
    gemm = layer.ops(first)
    gemm = gemm[np.argsort(p.ops.key[gemm])]
    arrived = t.tile_ready[: len(cast)]
    assert np.all(t.issue[cast] >= arrived)
    assert np.all(t.issue[cast] >= t.done[begin][p.ops.node[cast]])
    assert np.all(t.issue[gemm] >= t.done[cast])
    moved = around.cast_bytes(MODEL, p.ops.rows[cast], fp8_rows=False)
    tasks = next(one.tasks for one in p.templates if one.name == "around.cast")
    least = np.array([layer.costs.stream_ps(n / tasks * layer.cluster.n_sms) for n in moved.tolist()])
    assert np.all(layer.took("around.cast") >= least)
    assert len(layer.ops("around.activation")) == {"fwd": 4, "bwd": 0}[direction]
    start = layer.ops("around.activation.start")
    assert np.all(t.issue[start] >= np.array([t.done[gemm[p.ops.node[gemm] == gpu]].max() for gpu in range(4)]))
    if direction == "fwd":
        act = layer.ops("around.activation")
        assert np.all(t.issue[act] >= t.done[start])
        expected = [layer.costs.stream_ps(n) for n in around.activation_bytes(MODEL, layer.rows()).tolist()]
        assert layer.took("around.activation") == pytest.approx(expected, rel=0.05, abs=2000)


def fastermoe(direction: str) -> None:
    """Every group casts its own rows; own tokens are sorted before the first row leaves, and put back behind the last."""
    layer = Layer("fastermoe", direction)
    t = layer.trace
    groups = len(layer.ops("around.scatter.start")) // 4 - 1
    assert groups == len(layer.ops("around.activation.start")) // 4 > 1
    each = {"fwd": 2 + 2, "bwd": 3 + 2}[direction]
    assert layer.starts() == groups * each + 2
    moved = around._permuted_bytes(MODEL, MODEL.tokens_per_gpu, np.full(1, MODEL.tokens_per_gpu * MODEL.topk), fp8_rows=False)
    for name, n_bytes in zip(("around.scatter", "around.gather"), moved, strict=True):
        expected = layer.costs.moved_ps(float(n_bytes[0]))
        assert layer.took(name)[:4] == pytest.approx([expected] * 4, rel=0.05, abs=2000)
    scatter, start = layer.ops("around.scatter")[:4], layer.ops("around.scatter.start")[:4]
    assert np.all(t.issue[scatter] >= t.done[start])
    casts = layer.ops("around.scatter")[4:]
    whole = layer.costs.stream_ps(float(around.cast_bytes(MODEL, layer.rows(), fp8_rows=False).max()))
    assert layer.took("around.scatter")[4:].max() < whole or len(casts) == 0


def fault() -> str:
    for check in (comet, fastermoe):
        for direction in ("fwd", "bwd"):
            try:
                check(direction)
            except Exception as error:  # a mutant may break in any way
                return f"{check.__name__} {direction}, {type(error).__name__}: {str(error).strip()[:200]!r}"
    return ""


def test_around_itself_breaks_no_rule() -> None:
    comet("fwd")
    comet("bwd")
    fastermoe("fwd")
    fastermoe("bwd")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("broken")
    monkeypatch.setitem(sys.modules, "broken", module)  # its dataclasses look their module up
    exec(compile(mutant.text(), str(around.__file__), "exec"), module.__dict__)
    for name, value in vars(module.MemoryKernels).items():
        if callable(value):
            monkeypatch.setattr(around.MemoryKernels, name, value)
    found = fault()
    print(found)
    assert found, "no layer broke a rule"
