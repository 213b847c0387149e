"""The row path on a merge: forward of one micro-batch beside backward of another, tensors of both equal to the references and to autograd's."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from dysharp.base.errors import ConfigError, EmulationMismatch
from dysharp.engine.burst.run import run_burst
from dysharp.functional.experts import GatedExperts, IntegerExperts
from dysharp.functional.layer import Tensors
from dysharp.functional.machine import Context, Machine
from dysharp.functional.merged import run_merged
from dysharp.functional.numbers import number
from dysharp.functional.orders import ORDERS
from dysharp.functional.reference import dense_backward, dense_forward, recorded_reference
from dysharp.functional.rows import Outcome, run_rows
from dysharp.program import Program
from dysharp.program.merge import Part, merge
from dysharp.program.verify import verify

GPUS, TOKENS, HIDDEN, MID, N_EXPERTS, TOPK = 4, 6, 64, 32, 8, 2
SYSTEMS = ("dysharp", "deepep", "nvls", "fastermoe", "comet", "ideal")


class Layers:
    """Micro-batch A before its forward pass, and micro-batch B after it, through one system and the same experts."""

    def __init__(self, system: str, dtype: str = "int32", **options: object) -> None:
        rng, n = np.random.default_rng(5), number(dtype)
        family = IntegerExperts if n.is_integer else GatedExperts
        self.experts, self.machine = family(N_EXPERTS, HIDDEN, MID, 3), Machine(system, gpus=GPUS, path="row", **options)  # type: ignore[arg-type]
        shape = (GPUS * TOKENS, HIDDEN)
        self.x = {label: n.store(rng.integers(-3, 4, shape) if n.is_integer else rng.standard_normal(shape)) for label in ("A", "B", "dy")}
        chosen = {label: np.argsort(rng.random((len(self.x[label]), N_EXPERTS)), axis=1)[:, :TOPK] for label in ("A", "B")}
        weight = {label: rng.integers(1, 4, e.shape) if n.is_integer else rng.dirichlet(np.ones(TOPK), len(e)) for label, e in chosen.items()}
        self.context: dict[str, Context] = {}
        self.forward: dict[str, Tensors] = {}
        for label in ("A", "B"):
            _, self.context[label] = self.machine.forward(self.x[label], chosen[label], weight[label], self.experts)
            self.forward[label] = self.machine.passes["forward"].tensors
        self.b_record = self.machine.passes["forward"].outcome.record
        c = self.context["B"]
        self.tensors = {"A": self.forward["A"], "B": Tensors(c.routing, n, self.experts, self.x["dy"], c.weight, c.saved)}

    def merged(self, streams: tuple[tuple[str, ...], ...] = ()) -> Program:
        parts = [
            Part(label, self.machine.plan(t), microbatch=i, direction="bwd" if i else "fwd") for i, (label, t) in enumerate(self.tensors.items())
        ]
        program = merge(parts, streams=streams)
        verify(program)
        return program


def check(layers: Layers, found: Mapping[str, Outcome]) -> None:
    """Outputs, gradients of inputs, gates and weights equal those of the dense layer; sums are those of the record, bit for bit."""
    grads = layers.experts.take_grads()
    np.testing.assert_array_equal(found["A"].out, dense_forward(layers.tensors["A"]))
    dense = copy.deepcopy(layers.tensors["B"].experts)
    b = layers.tensors["B"]
    dx, gate = dense_backward(Tensors(b.routing, b.number, dense, b.tokens, b.weight, b.saved), layers.x["B"])
    np.testing.assert_array_equal(found["B"].out, dx)
    np.testing.assert_array_equal(found["B"].gate_grad, gate)
    for name, expected in dense.take_grads().items():
        np.testing.assert_array_equal(grads[name], expected, name)
    for label, forward in (("A", found["A"].record), ("B", layers.b_record)):
        again = Tensors(
            *(getattr(layers.tensors[label], name) for name in ("routing", "number")),
            copy.deepcopy(dense),
            *(getattr(layers.tensors[label], name) for name in ("tokens", "weight", "saved")),
        )
        np.testing.assert_array_equal(found[label].out, recorded_reference(again, found[label].record, forward=forward).out)


def test_a_gate_weight_that_is_no_number_is_refused() -> None:
    layers = Layers(SYSTEMS[0], "float32")
    weight = layers.context["B"].weight.copy()
    weight[3, 1] = np.inf
    with pytest.raises(ConfigError, match="gate weights: found inf at token 3, column 1, expected finite values"):
        replace(layers.tensors["B"], weight=weight)


@pytest.mark.parametrize("system", SYSTEMS)
def test_both_passes_give_the_tensors_of_the_reference(system: str) -> None:
    layers = Layers(system)
    check(layers, run_merged(layers.merged(), layers.tensors, "random", seed=1))


@pytest.mark.parametrize("order", [order for order in ORDERS if order != "trace"])
def test_tensors_do_not_depend_on_the_order(order: str) -> None:
    layers = Layers("dysharp")
    check(layers, run_merged(layers.merged(), layers.tensors, order))


@pytest.mark.parametrize("streams", [(), (("A", "B"),), (("B", "A"),)])
def test_the_order_of_the_engine_and_streams(streams: tuple[tuple[str, ...], ...]) -> None:
    layers = Layers("deepep")
    program = layers.merged(streams)
    found = run_merged(program, layers.tensors, "trace", trace=run_burst(program)[0])
    check(layers, found)
    assert found["A"].events >= program.n_ops


def test_gradients_are_those_of_autograd() -> None:
    torch = pytest.importorskip("torch")
    layers = Layers("dysharp", "float32")
    found = run_merged(layers.merged(), layers.tensors, "random", seed=2)
    grads, experts = layers.experts.take_grads(), layers.experts
    w1, w2 = (torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in (experts.w1, experts.w2))
    for label in ("A", "B"):
        t = layers.forward[label]
        x, gate = (torch.tensor(np.asarray(v, np.float64), requires_grad=True) for v in (layers.x[label], t.weight))
        h = torch.einsum("nd,edh->neh", x, w1)[torch.arange(len(x))[:, None], torch.tensor(t.routing.expert.astype(np.int64))]
        a = torch.nn.functional.silu(h[..., :MID]) * h[..., MID:]
        y = (gate[..., None] * torch.einsum("nkm,nkmd->nkd", a, w2[torch.tensor(t.routing.expert.astype(np.int64))])).sum(1)
        if label == "A":
            np.testing.assert_allclose(found["A"].out, y.detach().numpy(), atol=1e-5)
            continue
        (y * torch.tensor(np.asarray(layers.x["dy"], np.float64))).sum().backward()
        for one, other in ((found["B"].out, x.grad), (found["B"].gate_grad, gate.grad), (grads["w1"], w1.grad), (grads["w2"], w2.grad)):
            np.testing.assert_allclose(one, other.numpy(), atol=3e-5)


def test_a_merge_needs_the_tensors_of_its_parts() -> None:
    layers = Layers("ideal")
    program = layers.merged()
    with pytest.raises(ConfigError, match="found tensors of \\['A'\\], expected those of the parts \\['A', 'B'\\]"):
        run_merged(program, {"A": layers.tensors["A"]})
    with pytest.raises(ConfigError, match="found a merge of Programs"):
        run_rows(program, layers.tensors["A"])
    with pytest.raises(ConfigError, match="order 'trace': found no Trace"):
        run_merged(program, layers.tensors, "trace")


def test_swapped_tensors_are_noticed() -> None:
    layers = Layers("dysharp")
    program = layers.merged()
    with pytest.raises((ConfigError, EmulationMismatch)):
        run_merged(program, {"A": layers.tensors["B"], "B": layers.tensors["A"]})
