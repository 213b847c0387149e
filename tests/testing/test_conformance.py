"""Every registered system passes the conformance suite on every small layer, and the suite can fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dysharp.testing
from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.functional.machine import Machine
from dysharp.program import Head, Program, Tail, Trace
from dysharp.program.tables import Holds, Point, Semaphores
from dysharp.specs import Cluster, Model
from dysharp.systems import Costs, Facts, Moves, all_systems, get_system, system
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.paper_layers import _copy_per_expert
from dysharp.systems.registry import _REGISTRY
from dysharp.testing.conformance import Report, backward, broken, case, conformance, emulation, rows, runs
from dysharp.testing.conformance.__main__ import main
from dysharp.testing.conformance.case import NAMES, CheckedPass, LayerInputs, SystemCase, small_layers
from dysharp.testing.conformance.runs import _starts_at_a_glance, busy_floor_ps
from dysharp.testing.conformance.suite import RULES
from dysharp.workload import Routing
from dysharp.workload.traffic import Rows, one_copy_per_expert
from tests.systems.layers import layers

LAYERS = layers()
ELSEWHERE = ("packets_carry_the_same_bytes",)
"""Asked of one layer only: the packet level takes long on 32 GPUs."""
OF_A_PASS = [r.name for r in RULES if r.scope == "pass" and r.name not in ELSEWHERE]


QUICK_PASSES = {("lognormal", "bwd"), *((name, "fwd") for name in ("lognormal", "one GPU", "real"))}
PASSES = [
    pytest.param(layer, direction, marks=[] if (layer, direction) in QUICK_PASSES else pytest.mark.slow)
    for layer in LAYERS
    for direction in ("fwd", "bwd")
]


@pytest.mark.sampled
@pytest.mark.parametrize(("layer", "direction"), PASSES)
@pytest.mark.parametrize("system", all_systems())
def test_system_conforms(system, layer, direction):
    report = conformance(system, *LAYERS[layer], direction, rules=OF_A_PASS)
    assert report.failed == ()
    assert report.ran["legal"] == 1
    peeled = {"starts_at_a_glance"} if get_system(system).peels else set()
    assert {f.rule for f in report.not_run} - peeled <= {"engine_equals_oracle", "tensor_of_the_layer"}


@pytest.mark.sampled
@pytest.mark.parametrize("direction", ["fwd", pytest.param("bwd", marks=pytest.mark.slow)])
@pytest.mark.parametrize("system", [name for name, s in all_systems().items() if "mediation" in {f.name for f in fields(s.options)}])
def test_system_conforms_with_mediation(system, direction):
    assert conformance(system, *LAYERS["lognormal"], direction, {"mediation": True}, OF_A_PASS).failed == ()


@pytest.mark.parametrize("direction", ["fwd", pytest.param("bwd", marks=pytest.mark.slow)])
@pytest.mark.parametrize("places", [0, 1, 4096])
@pytest.mark.parametrize("layer", [n for n in LAYERS if n != "32 GPUs"])
def test_reducing_pushes_conform(layer, places, direction):
    options = {"reduction": "push", "sum_places": places}
    report = conformance("hub-sharp", *LAYERS[layer], direction, options, OF_A_PASS)
    assert report.failed == ()
    assert {f.rule for f in report.not_run} <= {"engine_equals_oracle", "tensor_of_the_layer"}


@pytest.mark.parametrize("system", all_systems())
def test_packets_carry_the_same_bytes(system):
    report = conformance(system, *LAYERS["lognormal"], rules=ELSEWHERE)
    assert report.failed == report.not_run == ()


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("system", [name for name, s in all_systems().items() if not s.peels])
def test_the_verifier_takes_the_short_way(system, direction):
    """Layers of millions of ops pass the test on kinds of op; the peel behind it agrees. CCFuser says why it is peeled."""
    assert [name for name, s in all_systems().items() if s.peels] == ["ccfuser"]
    assert list(_starts_at_a_glance(CheckedPass(get_system(system), small_layers()["lognormal"], direction))) == []


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_packets_of_reducing_pushes_carry_the_same_bytes(direction):
    options = {"reduction": "push", "sum_places": 4096}
    report = conformance("hub-sharp", *LAYERS["lognormal"], direction, options, ELSEWHERE)
    assert report.failed == report.not_run == ()


def forgetful(program: Program) -> Program:
    """GEMM-2 computes one row less of its first tile."""
    gemm2 = next(i for i, t in enumerate(program.templates) if t.operator == "gemm2")
    rows = program.ops.rows.copy()
    rows[int((program.ops.template == gemm2).argmax())] -= 1
    return replace(program, ops=replace(program.ops, rows=rows))


def silent_about_bytes(program: Program) -> Program:
    """Sends half rows and declares nothing."""
    put = next(i for i, t in enumerate(program.templates) if t.operator == "combine")
    of_put = program.ops.template == put
    bytes_ = np.where(of_put, program.ops.bytes // 2, program.ops.bytes)
    row_bytes = program.regions.row_bytes.copy()
    row_bytes[[name == "partial" for name in program.regions.name]] //= 2
    return replace(
        program,
        ops=replace(program.ops, bytes=bytes_, wire=_own_wire(program, of_put)),
        wires=_with_copy(program, int(program.ops.wire[of_put][0])),
        regions=replace(program.regions, row_bytes=row_bytes),
        declared=replace(program.declared, traffic={}),
    )


def stowaway(program: Program) -> Program:
    """Dispatch calls itself control and declares nothing."""
    templates = tuple(replace(t, operator="other") if t.operator == "dispatch" else t for t in program.templates)
    return replace(program, templates=templates, declared=replace(program.declared, traffic={}))


def under_another_name(program: Program) -> Program:
    """Dispatch counts as an operator nobody looks at."""
    templates = tuple(replace(t, operator="gemm1") if t.operator == "dispatch" else t for t in program.templates)
    return replace(program, templates=templates, declared=replace(program.declared, traffic={}))


def twice(program: Program) -> Program:
    """GEMM-2 computes its second tile twice and its first one never; the rows on each GPU are as many as before."""
    gemm2 = next(i for i, t in enumerate(program.templates) if t.operator == "gemm2")
    key = program.ops.key.copy()
    first = int((program.ops.template == gemm2).argmax())
    key[first] = key[first + 1]
    return replace(program, ops=replace(program.ops, key=key))


def hurried(program: Program) -> Program:
    """Every GEMM takes a tenth of its time."""
    return replace(program, durations=program.durations // 10)


def crowded(program: Program) -> Program:
    """A GPU has ten times its SMs."""
    return replace(program, pools=replace(program.pools, slots=program.pools.slots * 10))


def elsewhere(program: Program) -> Program:
    """Planned for links twice as fast, without their latency."""
    return replace(program, hardware=replace(program.hardware, rate=2 * program.hardware.rate, lat=0))


def _with_copy(program, row):
    w = program.wires
    return type(w)(*(np.append(getattr(w, c), getattr(w, c)[row]) for c in w.__slots__))


def _own_wire(program, ops):
    return np.where(ops, np.int32(len(program.wires.up)), program.ops.wire)


def hasty(program: Program) -> Program:
    """Combine of GPU 0 waits for nothing; only tensors show it, since other GPUs' Combine waits."""
    combine = [i for i, t in enumerate(program.templates) if t.operator == "combine"]
    ops = np.flatnonzero(np.isin(program.ops.template, combine) & (program.ops.node == 0))
    e = program.edges
    kept = ~((e.head_kind == Head.OP_ISSUE) & np.isin(e.head, ops))
    return replace(program, edges=type(e)(*(getattr(e, c)[kept] for c in e.__slots__)))


def unfounded(program: Program) -> Program:
    """Combine of every GPU waits for nothing."""
    combine = [i for i, t in enumerate(program.templates) if t.operator == "combine"]
    e = program.edges
    kept = ~((e.head_kind == Head.OP_ISSUE) & np.isin(program.ops.template[e.head], combine))
    return replace(program, edges=type(e)(*(getattr(e, c)[kept] for c in e.__slots__)))


def taken_last(program: Program) -> Program:
    """A semaphore that the last op takes and the first op gives back."""
    held, last = np.zeros(1, np.int32), np.full(1, program.n_ops - 1, np.int32)
    done = np.full(1, Point.OP_DONE, np.int32)
    return replace(
        program, holds=Holds(sem=held, amount=held + 1, acquire_kind=done, acquire=last, release_kind=done, release=held),
        semaphores=Semaphores(node=held, capacity=held + 9, name=("turn",), unit=("turns",)),
    )  # fmt: skip


@pytest.fixture
def cheat(monkeypatch) -> Callable[..., Report]:
    """`cheat(change, direction, system, rules)`: the report about a system whose Programs `change` has changed."""

    def report(change: Callable[[Program], Program], direction: str = "fwd", name: str = "deepep", rules: Any = None) -> Report:
        honest = all_systems()[name]
        plan = honest.paper
        monkeypatch.setitem(_REGISTRY, name, replace(honest, paper=lambda *a: change(plan(*a)) if a[3] == direction else plan(*a)))
        layer = LAYERS["uniform"]
        return conformance(name, *layer, direction if rules is None else "both", rules=OF_A_PASS if rules is None else rules)

    return report


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (forgetful, r"gemm_tiles \(fwd\): gemm2 on GPU 0: found \d+ rows computed, expected \d+"),
        (silent_about_bytes, r"payload_by_gpu \(fwd\): traffic up of combine at GPU 0: found \d+ B, expected \d+ B"),
        (stowaway, r'only_operators_move_rows \(fwd\): template dispatch.put: found fn "copy" moved as operator "other", expected "control"'),
        (under_another_name, r"only_operators_move_rows \(fwd\): traffic up of gemm1: found \d+ B, expected none \(dispatch, combine and other"),
        (twice, r"gemm_tiles \(fwd\): gemm2: found missing, repeated or moved tiles, expected each tile once on its GPU with its rows"),
        (hurried, r"gemm_tiles \(fwd\): gemm1: found \d+ ps of SM time on 132 slots of a GPU, expected at least \d+ ps, the time of its"),
        (crowded, r"gemm_tiles \(fwd\): gemm1: found \d+ ps of SM time on 1320 slots of a GPU, expected at least \d+ ps, .* on its 132 SMs"),
        (elsewhere, r"wire_bytes_are_explained \(fwd\): hardware.rate: found 900000, expected 450000, the cluster's"),
        (hasty, r"tensor_of_the_layer \(fwd\): "),
        (taken_last, r"semaphores_are_taken_first \(fwd\): semaphore turn: found it given by op 0 \(.*\) at \d+ ps, expected after op \d+"),
        (unfounded, r'legal \(fwd\): template \d+ \(combine.put\): found ops that read "expert.y" and wait for no op that writes it, expected'),
    ],
)
def test_a_cheating_system_fails(change, text, cheat):
    report = cheat(change)
    assert not report
    assert any(re.match(text, str(finding)) for finding in report.failed)


def test_an_illegal_program_is_one_line(cheat):
    report = cheat(lambda program: broken.delete_member(program, 3), name="nvls")
    assert len(report.failed) == 1
    assert report.failed[0].rule == "legal"
    assert {f.text for f in report.not_run} == {"the Program is not legal"}


# ---- rules about both passes -----------------------------------------------------------------------------


def gradients_at_once(program: Program) -> Program:
    """Weight gradients of the first stage wait for nothing."""
    fillers = [i for i, t in enumerate(program.templates) if t.fn == "gemm2_wgrad"]
    e = program.edges
    kept = ~((e.head_kind == Head.OP_ISSUE) & np.isin(program.ops.template[e.head], fillers))
    templates = tuple(replace(t, fn="", src="", dst="") if t.fn == "gemm2_wgrad" else t for t in program.templates)
    return replace(program, templates=templates, edges=type(e)(*(getattr(e, c)[kept] for c in e.__slots__)))


def waited_for(program: Program) -> Program:
    """The last Combine waits for a weight gradient."""
    filler = next(i for i, t in enumerate(program.templates) if t.fn == "gemm2_wgrad")
    e, op, last = program.edges, int((program.ops.template == filler).argmax()), program.n_ops - 1
    new = zip((e.tail_kind, e.tail, e.head_kind, e.head), (Tail.OP_DONE, op, Head.OP_ISSUE, last), strict=True)
    return replace(program, edges=type(e)(*(np.append(c, np.int32(v)) for c, v in new)))


def without_gate_gradients(program: Program) -> Program:
    """Nothing rides along."""
    return replace(program, wires=replace(program.wires, aux=np.zeros_like(program.wires.aux)))


def slower(program: Program) -> Program:
    """Every task takes twice the time."""
    return replace(program, durations=2 * program.durations)


def other_rows(program: Program) -> Program:
    """Backward believes that two tokens of an expert are each other."""
    key = program.regions.row_key.copy()
    key[[0, 1]] = key[[1, 0]]
    return replace(program, regions=replace(program.regions, row_key=key))


@pytest.mark.parametrize(
    ("change", "rule", "text"),
    [
        (slower, "gradients_are_twice_the_work", r"gradients of weights: found \d+ ps of SM time"),
        (gradients_at_once, "backward_waits_as_forward", "gemm2_wgrad: found waits for nothing, expected waits for join, as gemm1 has"),
        (waited_for, "nothing_waits_for_weight_gradients", r"op \d+: found an op that waits for this weight gradient"),
        (without_gate_gradients, "backward_mirrors_bytes", r"gate gradients: found \{'up': 0, 'down': 0\} B backward, expected the mirror of"),
    ],
)
def test_a_backward_pass_that_is_no_mirror_fails(change, rule, text, cheat):
    report = cheat(change, "bwd", rules=[rule])
    assert {f.rule for f in report.failed} == {rule}
    assert re.match(text, report.failed[0].text)


def test_gate_gradients_may_ride_rows_of_another_size():
    """In Combine, where Dispatch has smaller rows: as many bytes behind each row, whatever its size."""
    assert conformance("multiwrite", *LAYERS["uniform"], options={"dispatch": "int8"}, rules=["backward_mirrors_bytes"])


# ---- measured values and references that are wrong -------------------------------------------------------


def later(trace: Trace) -> Trace:
    """Every op is done 1 ps later."""
    return replace(trace, done=trace.done + 1)


def busier(trace: Trace) -> Trace:
    """Every link sends one byte more."""
    return replace(trace, up_busy=trace.up_busy + 1)


WRONG_VALUES: dict[str, tuple[Any, str, Callable[[Any], Any], str]] = {
    "useful_rows": (case, "run_burst", lambda r: (replace(r[0], tile_ready=r[0].tile_ready * 0 - 1), *r[1:]), "tiles: found"),
    "starts_at_a_glance": (runs, "starts_by_kind", lambda _: False, "waits: found a circle"),
    "time_above_bounds": (case, "run_burst", lambda r: (replace(r[0], done=r[0].done * 0 + 1), *r[1:]), "time: found"),
    "bound_adds_up": (runs, "program_bound", lambda bound: replace(bound, us=2 * bound.us), "bound: found terms that add up to"),
    "one_digest": (runs, "run_burst", lambda r: (later(r[0]), *r[1:]), "digest: found different"),
    "engine_equals_oracle": (runs, "run_oracle", later, "oracle: found a different column done"),
    "packets_carry_the_same_bytes": (case, "run_packet", lambda r: replace(r, trace=busier(r.trace)), "link up of GPU 0: found"),
    "wire_bytes_are_explained": (rows, "wire_table", lambda t: replace(t, up=t.up + 1), "wire up of GPU 0: found"),
    "payload_is_declared": (runs, "traffic_bytes", lambda t: t | {"up": {k: v + 1 for k, v in t["up"].items()}}, "payload up of"),
    "causes_add_up": (runs, "attribute", lambda parts: {cause: ps + 1 for cause, ps in parts.items()}, "attribution: found"),
    "shares_lie_within_the_run": (case, "measure", lambda m: replace(m, exposed_comm_us=-1.0), "exposed_comm_us: found -1.0 us"),
    "oracle_agrees_on_the_forward_rows": (runs, "run_oracle", later, "oracle: found a different column done"),
    "rows_keep_what_they_are_for": (case, "relayout", other_rows, "rows: found rows with other ops"),
    "backward_takes_the_forward_rows": (case, "relayout", other_rows, "row 0: found token"),
    "broken_ops_are_noticed": (broken, "_noticed", lambda _: False, "_"),
    "packets_have_the_engine_bytes": (emulation, "run_burst", lambda r: (busier(r[0]), *r[1:]), "link up of GPU 0: found"),
    "engine_order_binds_the_trace_rows": (emulation, "run_case", lambda results: (results[0] + 1,), "y: found row 0 wrong"),
    "hard_routings_are_served": (emulation, "run_case", lambda results: (results[0] + 1,), "y, path packet: found row 0 wrong"),
}
"""{rule: (module, name of a function there, change of its result, start of the fault)}."""
ORDERED = {"semaphores_are_taken_first", "sums_keep_the_promised_order"}
WRONG_PROGRAMS = {*ORDERED, "gemm_tiles", "payload_by_gpu", "only_operators_move_rows", "tensor_of_the_layer"}
WRONG_BACKWARD = {"gradients_are_twice_the_work", "backward_waits_as_forward", "nothing_waits_for_weight_gradients", "backward_mirrors_bytes"}
WITHOUT_WATCH = {"broken_members_are_noticed"}
SHORT_RESULTS = {"integers_equal_the_dense_layer", "floats_equal_the_recorded_sums", "packets_equal_rows"}
UNTESTED = {
    "packet_time_agrees",
    "buffers_follow_each_other",
    "packets_equal_rows_in_floats",
    "pure_communication_has_no_surroundings",
}
"""Rules that no test makes fail yet. The set only shrinks."""


@pytest.mark.sampled
@pytest.mark.parametrize("rule", WRONG_VALUES)
def test_a_rule_notices_a_wrong_value(rule, monkeypatch):
    module, name, change, text = WRONG_VALUES[rule]
    honest = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *a, **k: change(honest(*a, **k)))
    report = conformance("deepep", *LAYERS["uniform"], rules=[rule])
    assert {f.rule for f in report.failed} == {rule}
    assert any(f.text.startswith(text) for f in report.failed), str(report)


@pytest.mark.parametrize("system", ["deepep", "fusion-only", "nvls", "dysharp"])
def test_a_promised_order_of_sums_is_kept_or_a_fault(system, monkeypatch):
    monkeypatch.setitem(_REGISTRY, system, replace(all_systems()[system], sums_in_order=True))
    report = conformance(system, *LAYERS["uniform"], rules=["sums_keep_the_promised_order"])
    assert report.passed is (system in ("deepep", "fusion-only"))
    assert report.passed or re.match(r"token \d+: found expert slots \[.*\] added in this order, expected \[", report.failed[0].text)


def test_every_rule_has_a_fault_that_it_notices():
    tested = WRONG_VALUES.keys() | WRONG_PROGRAMS | WRONG_BACKWARD | WITHOUT_WATCH | SHORT_RESULTS
    assert {r.name for r in RULES if r.scope != "collective"} - tested == UNTESTED  # those: test_collective_rules.py


def test_the_run_notices_a_broken_program_that_the_verifier_lets_pass(monkeypatch):
    """Sample 6 deletes a member of Dispatch: GEMM tiles wait for its rows forever, which the watchdog of the run says."""
    one = CheckedPass(get_system("deepep"), small_layers()["lognormal"], "fwd")
    monkeypatch.setattr(broken, "verify", lambda program: None)
    assert list(broken._broken_members_are_noticed(one, 6)) == []
    monkeypatch.setattr(broken, "run_burst", lambda program: None)
    (text,) = broken._broken_members_are_noticed(one, 6)
    assert re.fullmatch(r"delete_member of op \d+ \(dispatch.put, node \d\), member \d+: found nothing wrong, expected an error", text)


def test_rows_that_the_backward_run_moves_are_noticed(monkeypatch):
    """Honest systems have no fault; a run that puts two rows of a region elsewhere has one."""
    name, layer = "backward_takes_the_forward_rows", LAYERS["uniform"]
    report = conformance("deepep", *layer, rules=[name])
    assert (report.failed, report.ran) == ((), {"legal": 2, name: 1})
    honest = backward.run_burst

    def moved(program: Program) -> tuple[Trace, Any]:
        trace, counts = honest(program)
        slot = trace.row_slot.copy()
        slot[[0, 1]] = slot[[1, 0]]
        return replace(trace, row_slot=slot), counts

    monkeypatch.setattr(backward, "run_burst", moved)
    texts = [f.text for f in conformance("deepep", *layer, rules=[name]).failed]
    assert texts == ["slots: found rows moved by the backward run, expected the slots of the forward run"]


# ---- results that are not whole --------------------------------------------------------------------------


@pytest.mark.parametrize("result", range(len(NAMES)))
@pytest.mark.parametrize(
    ("rule", "value"),
    [("integers_equal_the_dense_layer", "oldest"), ("floats_equal_the_recorded_sums", "float32"), ("packets_equal_rows", ())],
)
def test_a_short_result_is_noticed(rule, value, result, monkeypatch):
    """Every result in turn loses its last row; where two paths are compared, the packet path's result loses it."""
    honest = emulation.run_case

    def short(inputs: LayerInputs, machine: Machine, **settings: Any) -> tuple[Any, ...]:
        results = honest(inputs, machine, **settings)
        cut = rule != "packets_equal_rows" or machine.path == "packet"
        return tuple(a[:-1] if cut and i == result else a for i, a in enumerate(results))

    monkeypatch.setattr(emulation, "run_case", short)
    faults = [*getattr(emulation, f"_{rule}")(SystemCase(get_system("deepep")), value)]
    assert faults
    assert faults[0].startswith(f"{NAMES[result]}: found shape ")


# ---- systems from outside --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PaddedOptions:
    """`surplus`: copies of every row that are sent for nothing."""

    surplus: int = 1


def padded(routing: Routing, options: PaddedOptions) -> Rows:
    """A row per (token, expert), and surplus copies."""
    sent, received = one_copy_per_expert(routing)
    return sent * options.surplus, received * options.surplus


@pytest.fixture
def outsider() -> Iterator[Callable[..., str]]:
    """`outsider(plan)` registers a system called "outsider" until the test ends."""
    all_systems()

    def register(plan: Any, traffic: Any = "one_copy_per_expert", **fields: Any) -> str:
        costs = Costs(permutes=0, fused=False)
        system("outsider", Facts(source="a test", options=PaddedOptions, moves=Moves(traffic), costs=costs, **fields))(plan)
        return "outsider"

    yield register
    _REGISTRY.pop("outsider", None)


def plan_rows(model: Model, cluster: Cluster, routing: Routing, direction: str, options: PaddedOptions) -> Program:
    _copy_per_expert(layer := LayerBuilder(model, cluster, routing, direction))
    return layer.build(Moves("one_copy_per_expert"))


@pytest.mark.slow
def test_a_system_from_outside_conforms_in_one_call(outsider):
    report = dysharp.testing.conformance(outsider(plan_rows))
    of_layers = [rule for rule in RULES if rule.scope != "collective"]
    assert str(report).splitlines() == [
        f"outsider conforms: {sum(report.ran.values())} checks of {len(of_layers) - 2} rules, 0 faults",
        "not run: packet_time_agrees (slow; runs only if it is named)",
        'not run: pure_communication_has_no_surroundings (a real form with the option "compute" is needed)',
        "not run: sums_keep_the_promised_order (the system promises no order of sums): late-completion; late-delivery; newest and 2 more",
    ]
    assert set(report.ran) == {"legal", *(r.name for r in of_layers)} - {f.rule for f in report.not_run}


def test_a_traffic_scheme_follows_the_options(outsider):
    name = outsider(plan_rows, padded)
    layer = LAYERS["uniform"]
    assert conformance(name, *layer, rules=["payload_by_gpu"])
    report = conformance(name, *layer, "fwd", {"surplus": 2}, ["payload_by_gpu"])
    assert [f.text.partition(":")[0] for f in report.failed] == [
        f"traffic {side} of {operator} at GPU 0" for operator in ("dispatch", "combine") for side in ("up", "down")
    ]


def test_what_options_rule_out_is_not_run():
    rules = ["payload_by_gpu", "gemm_tiles", "packets_equal_rows_in_floats"]
    narrow = conformance("deepep", *LAYERS["uniform"], options={"dispatch": "fp8"}, rules=rules)
    bare = conformance("deepep", *LAYERS["uniform"], options={"compute": False}, rules=rules)
    assert (narrow.failed, bare.failed) == ((), ())
    assert narrow.ran == {"legal": 2, "payload_by_gpu": 2, "gemm_tiles": 2}
    assert "not run: gemm_tiles (the options leave the GEMMs out): fwd; bwd" in str(bare).splitlines()
    assert "not run: packets_equal_rows_in_floats (the packet path carries rows in the model's format only): float32; bfloat16" in str(narrow)


@pytest.mark.parametrize(
    ("rule", "direction", "options", "reason"),
    [
        ("gemm_tiles", "both", {"compute": False}, "the options leave the GEMMs out"),
        ("backward_mirrors_bytes", "fwd", {}, 'direction "both" is needed'),
        ("tensor_of_the_layer", "bwd", {}, 'direction "fwd" is needed'),
    ],
)
def test_a_report_of_legal_alone_does_not_pass(rule, direction, options, reason):
    report = conformance("deepep", *LAYERS["uniform"], direction, options, [rule])
    assert not report
    assert set(report.ran) == {"legal"}, str(report)
    assert {(f.rule, f.text) for f in report.not_run} == {(rule, reason)}
    assert str(report).startswith("deepep was not judged: ")


def test_whatever_a_system_raises_is_one_line(outsider):
    def plan(*args: Any) -> Program:
        raise KeyError(51)

    report = conformance(outsider(plan), *LAYERS["uniform"], "fwd")
    line = plan.__code__.co_firstlineno + 1
    assert [str(f) for f in report.failed] == [f"legal (fwd): found KeyError: 51 (test_conformance.py:{line}), expected no exception"]


def test_a_layer_that_a_system_refuses_is_not_run(outsider):
    def plan(*args: Any) -> Program:
        raise ConfigError("no kernel for this layer")

    report = conformance(outsider(plan), *LAYERS["uniform"], "fwd", rules=["useful_rows"])
    assert not report
    assert report.failed == ()
    assert [str(f) for f in report.not_run] == ["legal (fwd): no kernel for this layer"]


def test_a_pipelined_system_says_that_it_takes_the_long_way(outsider):
    """Op 1 of a template waits for op 0 of it: no circle, but a glance at templates cannot tell."""

    def plan(*args: Any) -> Program:
        program = plan_rows(*args)
        e, ops = program.edges, np.flatnonzero(program.ops.template == 0)[:2]
        new = zip((e.tail_kind, e.tail, e.head_kind, e.head), (Tail.OP_DONE, ops[0], Head.OP_ISSUE, ops[1]), strict=True)
        return replace(program, edges=type(e)(*(np.append(c, np.int32(v)) for c, v in new)))

    name, rule = outsider(plan), ["starts_at_a_glance"]
    report = conformance(name, *LAYERS["uniform"], "fwd", rules=rule)
    assert [f.text.partition(",")[0] for f in report.failed] == ["waits: found a circle of templates"]
    outsider(plan, peels="chunks wait for chunks")
    report = conformance(name, *LAYERS["uniform"], "fwd", rules=rule)
    assert [f.text for f in report.not_run] == ["the verifier peels the Program: chunks wait for chunks"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: conformance("deepeep"), 'system \'deepeep\': unknown; did you mean "deepep"'),
        (lambda: conformance("deepep", rules=["useful_row"]), "rule 'useful_row': unknown; did you mean \"useful_rows\""),
        (lambda: conformance("deepep", options={"n_smm": 3}), "option deepep.n_smm: unknown"),
        (lambda: conformance("deepep", direction="up"), "direction 'up': unknown"),
        (lambda: conformance("deepep", LAYERS["uniform"][0]), "found only a part of model, cluster and routing, expected all three or none"),
    ],
)
def test_wrong_input_is_refused(call, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        call()


def test_every_rule_says_what_it_asks():
    names = [r.name for r in RULES]
    assert len(set(names)) == len(names)
    assert all(r.summary.endswith((".", ":")) for r in RULES)


def test_the_command(monkeypatch):
    done = CliRunner().invoke(main, ["ideal", "--rule", "useful_rows"])
    assert done.exit_code == 0
    assert done.output == "ideal conforms: 16 checks of 2 rules, 0 faults\n"
    assert CliRunner().invoke(main, ["-h"]).output == CliRunner().invoke(main, ["--help"]).output
    done = CliRunner().invoke(main, ["ideel"])
    assert done.exit_code == 2
    assert "did you mean" in done.output


def test_floor_is_the_busiest_link():
    model, cluster, routing = LAYERS["uniform"]
    system = all_systems()["nvls"]
    program = system.plan(model, cluster, routing, "fwd", system.options())
    fast = replace(program, hardware=replace(program.hardware, rate=10**9))
    assert busy_floor_ps(program) > busy_floor_ps(fast) > 0
    assert run_burst(program)[0].time_ps > busy_floor_ps(program)
