"""Rules about tensors: on the row path and the packet path a Program gives the results of a dense layer."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dysharp.base import Array, ConfigError, Texts
from dysharp.engine.burst.run import run_burst
from dysharp.functional.experts import Experts, IntegerExperts
from dysharp.functional.faults import MACHINE, ROUTING, machine_faults, routing_cases
from dysharp.functional.layer import Tensors
from dysharp.functional.machine import Machine
from dysharp.functional.machine import Pass as EmulatedPass
from dysharp.functional.numbers import number
from dysharp.functional.orders import ORDERS
from dysharp.functional.packets.instructions import check_program
from dysharp.functional.progress import check_interpreted
from dysharp.functional.reference import dense_backward, dense_forward, recorded_reference
from dysharp.functional.rows import run_rows
from dysharp.functional.sums import slots_of
from dysharp.functional.wire import CAST_ERROR
from dysharp.program import Program
from dysharp.testing.conformance.case import NAMES, CheckedPass, LayerInputs, SystemCase, layer_case, row_format, run_case
from dysharp.testing.conformance.rule import Lines, NotRun, rule

EMULATED_OPS = 20_000
"""Largest number of ops for the row path, which takes minutes above."""
UNTIMED = tuple(sorted(set(ORDERS) - {"trace"}))
FAULTS: tuple[Texts, ...] = ((), *((kind,) for kind in MACHINE), tuple(MACHINE))
FLOATS = ("float32", "bfloat16")
HALF_ULP = {"float32": 1e-6, "bfloat16": 2.0**-7}
"""A GEMM with other rows in its tile may differ in the last bit."""
DENSE = {"float32": 1e-5, "bfloat16": 2.0**-5}


def _check_interpreted(program: Program, packets: Tensors | None = None) -> None:
    """Raise NotRun for a part of a Program that the row path, or with `packets` the packet path, does not interpret."""
    try:
        check_interpreted(program)
        if packets is not None:
            check_program(program, packets)
    except ConfigError as error:
        raise NotRun(str(error)) from None


def machine_of(case: SystemCase, path: str, **settings: Any) -> Machine:
    """The functional machine of a rule. Default: four GPUs of the paper's cluster."""
    case.needs_gemms()
    rows = ("dispatch",) if hasattr(case.options, "sums") else ("dispatch", "combine")  # where the switch converts, packets carry what it sums
    if path == "packet" and any(row_format(case.options, operator) != "rows" for operator in rows):
        raise NotRun("the packet path carries rows in the model's format only")
    return _Asked(case.system.name, path=path, options=case.given, tracer=lambda program: run_burst(program)[0], **settings)


class _Asked(Machine):
    """A machine that raises NotRun for a Program that it cannot interpret."""

    def plan(self, tensors: Tensors) -> Program:
        program = super().plan(tensors)
        _check_interpreted(program, tensors if self.path == "packet" else None)
        return program


def _differing(names: Iterable[str], results: Iterable[Array], expected: Iterable[Array], whose: str) -> Iterator[str]:
    """One line per result that differs from `expected` in shape or in a value."""
    for name, a, b in zip(names, results, expected, strict=True):
        if a.shape != b.shape:
            yield f"{name}: found shape {a.shape}, expected {whose} {b.shape}"
        elif (wrong := a != b).any():
            yield f"{name}: found row {int(np.argwhere(wrong)[0][0])} wrong, expected {whose}"


def _unpadded(inputs: LayerInputs, *by_token: Array) -> list[Array]:
    """Arrays `[tokens of all GPUs, ...]` of a reference without the tokens that the machine adds behind the inputs."""
    return [a[: len(inputs.x)] for a in by_token]


# ---- one layer -------------------------------------------------------------------------------------------


@rule("pass", direction="fwd")
def _tensor_of_the_layer(case: CheckedPass) -> Lines:
    """A forward pass on integers in a random order gives the tensor of the dense layer."""
    case.needs_gemms()
    if case.program.n_ops > EMULATED_OPS:
        raise NotRun(f"the row path takes minutes above {EMULATED_OPS} ops")
    _check_interpreted(case.program)
    routing = case.layer.routing
    experts = IntegerExperts(routing.n_experts, 8, 4)
    rng = np.random.default_rng(0)
    tokens = rng.integers(-3, 4, (routing.n_tokens, experts.hidden)).astype(np.int32)
    weight = np.where(routing.slot >= 0, rng.integers(1, 4, routing.slot.shape), 0)
    tensors = Tensors(routing, number("int32"), experts, tokens, weight)
    yield from _differing(["y"], [run_rows(case.program, tensors, "random").out], [dense_forward(tensors)], "the dense layer's")


# ---- row by row ------------------------------------------------------------------------------------------


@rule("system", over=UNTIMED)
def _integers_equal_the_dense_layer(case: SystemCase, order: str) -> Lines:
    """On the row path and in any order, integers of both passes equal the dense layer, weight gradients included."""
    inputs, machine = layer_case("int32"), machine_of(case, "row", order=order)
    results = run_case(inputs, machine, backward=True)
    forward, backward = machine.passes["forward"].tensors, machine.passes["backward"].tensors
    experts = copy.deepcopy(inputs.experts)
    tokens = (dense_forward(forward), *dense_backward(replace(backward, experts=experts), forward.tokens))
    yield from _differing(NAMES, results, (*_unpadded(inputs, *tokens), *experts.take_grads().values()), "the dense layer's")


@rule("system", over=FLOATS)
def _floats_equal_the_recorded_sums(case: SystemCase, dtype: str) -> Lines:
    """On the row path, floats equal the reference with recorded sums bit for bit, and are close to the dense layer."""
    inputs, machine = layer_case(dtype), machine_of(case, "row", order="random")
    results = run_case(inputs, machine, backward=True)
    experts = copy.deepcopy(inputs.experts)
    expected = (*_unpadded(inputs, *_recorded(machine, experts)), *experts.take_grads().values())
    yield from _differing(NAMES, _bits(*results), _bits(*expected), "the recorded sums, bit for bit")
    (dense,) = _unpadded(inputs, dense_forward(machine.passes["forward"].tensors))
    yield from _far(results[0], dense, DENSE[dtype] + _cast(case))


def _recorded(machine: Machine, experts: Experts) -> tuple[Array, ...]:
    """(y, dx, gate gradients) of the references with recorded sums. `experts` adds up its weight gradients."""
    forward, backward = machine.passes["forward"], machine.passes["backward"]
    y = recorded_reference(forward.tensors, forward.outcome.record).out
    again = recorded_reference(replace(backward.tensors, experts=experts), backward.outcome.record, forward=forward.outcome.record)
    assert again.gate_grad is not None
    return y, again.out, again.gate_grad


def _bits(*arrays: Array) -> list[Array]:
    """Arrays as unsigned integers, so that equality compares bits."""
    return [np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}") for a in arrays]


def _cast(case: SystemCase) -> float:
    """What conversions in the switch may add to an error, over the largest value."""
    return sum(CAST_ERROR * (row_format(case.options, name) != "rows") for name in ("combine", "sums") if hasattr(case.options, "sums"))


def _far(found: Array, expected: Array, bound: float) -> Iterator[str]:
    if found.shape != expected.shape:
        yield f"y: found shape {found.shape}, expected {expected.shape}"
        return
    a, b = (array.astype(np.float64) for array in (found, expected))
    error = np.abs(a - b).max()
    if not error <= bound * np.abs(b).max():
        yield f"y: found an error of {error:.3g}, expected at most {bound:.3g} of the largest value, {np.abs(b).max():.3g}"


@rule("system", over=UNTIMED)
def _sums_keep_the_promised_order(case: SystemCase, order: str) -> Lines:
    """A system that promises an order adds the rows of every token in it, whatever comes first."""
    if not case.system.sums_in_order:
        raise NotRun("the system promises no order of sums")
    run_case(layer_case("float32"), machine := machine_of(case, "row", order=order))
    for token, chunks in machine.passes["forward"].outcome.record.sums.items():
        for added in (list(slots_of(one)) for one in chunks):
            if added != sorted(added):
                yield f"token {token}: found expert slots {added} added in this order, expected {sorted(added)}"


@rule("system")
def _engine_order_binds_the_trace_rows(case: SystemCase) -> Lines:
    """In the order of the engine's run, rows take the slots of the Trace, and tensors equal the recorded sums."""
    inputs, machine = layer_case("float32"), machine_of(case, "row", order="trace")
    results = run_case(inputs, machine)
    done = machine.passes["forward"]
    assert done.outcome.saved is not None
    if not np.array_equal(done.outcome.saved.row_slot, run_burst(done.program)[0].row_slot):
        yield "slots: found other slots than in the Trace, expected equal slots"
    expected = _unpadded(inputs, recorded_reference(done.tensors, done.outcome.record).out)
    yield from _differing(["y"], _bits(*results), _bits(*expected), "the recorded sums, bit for bit")


# ---- packet by packet ------------------------------------------------------------------------------------


@rule("system", over=FAULTS)
def _packets_equal_rows(case: SystemCase, faults: Texts) -> Lines:
    """On the packet path with any faults, integers of both passes equal the row path."""
    expected = run_case(layer_case("int32"), machine_of(case, "row"), backward=True)
    results = run_case(layer_case("int32"), machine_of(case, "packet", faults=machine_faults(faults)), backward=True)
    yield from _differing(NAMES, results, expected, "the row path's")


@rule("system", over=FLOATS)
def _packets_equal_rows_in_floats(case: SystemCase, dtype: str) -> Lines:
    """With two experts per token floats of packet path and row path agree, because a sum has at most two operands."""
    passes: list[EmulatedPass] = []
    for path in ("packet", "row"):
        machine = machine_of(case, path)
        run_case(layer_case(dtype, topk=2, experts=40), machine)  # few tokens per expert: GEMMs of one or two rows
        passes.append(machine.passes["forward"])
    sums = [{token: {str(e) for e in s} for token, s in p.outcome.record.sums.items()} for p in passes]
    if sums[0].keys() != sums[1].keys():
        yield f"tokens: found sums of {len(sums[0])} tokens in packets, expected the {len(sums[1])} of the row path"
    yield from _far(passes[0].outcome.out, passes[1].outcome.out, HALF_ULP[dtype] + _cast(case))


SLOTS = (4, 20, 40)  # replicas as bitmap, as three ids, with extension flits


@rule("system", over=[(direction, slots) for direction in ("forward", "backward") for slots in SLOTS])
def _packets_have_the_engine_bytes(case: SystemCase, point: tuple[str, int]) -> Lines:
    """On every link, encoded packets have the bytes that the engine times, with gate weights and extension flits."""
    direction, slots = point
    machine = machine_of(case, "packet")
    inputs = layer_case("bfloat16", tokens=24, experts=4 * slots, topk=min(8, slots), hidden=160, expert_hidden=4)
    run_case(inputs, machine, backward=True)
    done = machine.passes[direction]
    assert done.statistics is not None
    if any(framing.own for framing in done.program.framings):
        raise NotRun("packets carry no own copies of the issuer (Framing.own)")
    trace = run_burst(done.program)[0]
    for side, sent, timed in (("up", done.statistics.up_bytes, trace.up_busy), ("down", done.statistics.down_bytes, trace.down_busy)):
        for gpu, n_bytes in enumerate(timed.tolist()):
            if sent[gpu] != n_bytes:
                yield f"link {side} of GPU {gpu}: found {sent[gpu]} B in packets, expected {n_bytes} B (a row has one packet of gate weights)"


@rule("system", over=sorted(ROUTING))
def _hard_routings_are_served(case: SystemCase, kind: str) -> Lines:
    """With empty, local, skewed and dropped choices, both paths give the tensor of the dense layer."""
    drawn = np.argsort(np.random.default_rng(1).random((24, 16)), axis=1)[:, :4]
    inputs: LayerInputs = replace(layer_case("int32", tokens=24), expert=routing_cases(drawn, [kind], 4, 16))
    for path in ("packet", "row"):
        machine = machine_of(case, path)
        results = run_case(inputs, machine)
        yield from _differing([f"y, path {path}"], results, [dense_forward(machine.passes["forward"].tensors)], "the dense layer's")
