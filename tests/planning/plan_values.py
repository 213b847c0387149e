"""Cases of `STORED`: costs, memory, bounds, constraints, splits and texts of plans, for the small models of `step_values`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import numpy as np

from dysharp.base.errors import ConfigError
from dysharp.costs.exchange import Peers, Rows, exchange, least_us
from dysharp.model.layout import Layout
from dysharp.model.state import RECIPES
from dysharp.planning.arguments import FRAMEWORKS, lines_of
from dysharp.planning.cost import Costed, Coster, machine_of
from dysharp.planning.experts import hottest
from dysharp.planning.layers import pieces_of
from dysharp.planning.names import saving_of, schedule_of, short_of, text_of
from dysharp.planning.offload import OFFLOADED, SETS, offloaded_bytes
from dysharp.planning.plan import Search, front, plan_shapes, training_recipe_for
from dysharp.planning.schedules import SCHEDULES, V_SHAPED, peaks, ramp_of, work_of
from dysharp.planning.search import search, sensitivity
from dysharp.planning.space import FINE, SYSTEMS, WEIGHTS, Space, Task, constraints, default_space
from dysharp.planning.split import best_split, pace, slots, stage_text, v_split
from dysharp.specs import load_cluster
from dysharp.training.cost import BlockTimes, EpTimes, PassCost
from dysharp.training.costs import beside
from dysharp.training.memory import Saving
from dysharp.training.wires import host_rate
from tests.stored_values import Cases, Row, Table, digest
from tests.training.step_values import MODELS, SEQUENCE

STORED = Table(__file__, close=2e-6, zero=1e-9, whole=True)
CLUSTERS = {"megatron": "hw-dgx-h100-x8", "primus": "hw-gb200-nvl72-x2", "mindspeed": "paper-ascend-910b", "nemo-24.07": "paper-gh200-nvl32-x2"}
PLANNED = (
    *(("sparse", framework) for framework in CLUSTERS),
    ("lite", "mindspeed"),
    ("windowed", "primus"),
    ("linear", "nemo-24.07"),
    ("dense", "megatron"),
)
ROW = EpTimes(310.0, 730.0, 90.0, 210.0, 130.0, 250.0)
LISTS: dict[str, tuple[int, ...]] = {"tp": (1, 2, 3), "pp": (1, 2, 4, 6), "vpp": (1, 2, 3), "cp": (1, 2), "micro_batch": (1, 3)}


def coster(name: str, framework: str, gpus: int = 288, batch: int = 5184) -> Coster:
    """A model of `step_values` on the cluster of a framework."""
    model, on = replace(MODELS[name], linear=None, full_every=1), machine_of(load_cluster(CLUSTERS[framework]))
    task = Task(model, gpus, batch, SEQUENCE, "fp8" if framework == "primus" else "bf16", training_recipe_for(model, on), framework=framework)
    if framework == "nemo-24.07":
        task = replace(task, imbalance=1.3)
    experts: dict[str, tuple[int, ...]] = {"ep": (1, 3, 4, 12), "etp": (1, 2)} if model.layer else {}
    more: dict[str, Any] = {"offload": ((), ("core_attn",)), "weights": WEIGHTS, "system": ("flat", "deepep", "hierarchical", "moe-hub")}
    lists: dict[str, Any] = LISTS | experts | more | {"schedule": task.rules.schedule}
    return Coster(task, on, Space(**lists))


def candidates(name: str, framework: str) -> Iterator[dict[str, Any]]:
    """Sets of values, drawn so that every value of every dimension occurs beside many others."""
    draw, moe = random.Random(f"{name} {framework}"), MODELS[name].layer is not None
    degrees = [(1, 6, 1), (2, 4, 1), (3, 2, 2), (2, 2, 3), (1, 1, 1), (2, 6, 1), (1, 12, 1), (3, 4, 2), (1, 2, 2)]
    for at, schedule in enumerate((*SCHEDULES, "1f1b", "1f1b", "zb-h1", "dualpipe", "dualpipev", "1f1b")):
        tp, pp, vpp = degrees[at % len(degrees)]
        if schedule != "1f1b":
            pp, vpp = max(2, pp - pp % 2), 2 if schedule in V_SHAPED else 1
        if pp * vpp > MODELS[name].n_layers:
            pp = 2
        while True:
            values: dict[str, Any] = {
                "tp": tp, "pp": pp, "vpp": vpp, "cp": draw.choice((1, 2)), "ep": draw.choice((2, 3, 4, 5, 6, 12)) if moe else 1,
                "etp": draw.choice((1, 2)) if moe else 1, "micro_batch": draw.choice((1, 3)), "offload": draw.choice(SETS),
                "weights": draw.choice(WEIGHTS), "recompute": draw.choice(((), ("moe_act",), FINE, ("full",), ("moe", "mlp"))), "schedule": schedule,
                "system": draw.choice(SYSTEMS) if moe else "flat", "overlap": draw.choice(("none", "pair")) if moe else "none",
            }  # fmt: skip
            replicas, spread = 288 // (tp * pp * values["cp"]), values["ep"] * values["etp"]
            layer = MODELS[name].layer
            n_experts = layer.n_experts if layer else 1
            if tp * values["cp"] * replicas % spread == 0 and n_experts % values["ep"] == 0 and 288 % (tp * pp * values["cp"]) == 0:
                break
        yield values


def plans(name: str, framework: str) -> Iterator[Row]:
    """Closed forms of single candidates, and all that is said about them."""
    one = coster(name, framework)
    for at, values in enumerate(candidates(name, framework)):
        done: Costed = one.cost_of(values, at)
        key = f"{at} {values['schedule']}"
        yield key, (done.step_us, *done.parts.values(), *done.memory, done.in_flight, done.limit, done.layout.stages)
        yield f"{key}, chunks", (us for chunk in one.chunks_us(done) for us in chunk)
        pieces = one.pieces(values)
        yield f"{key}, pieces", (us for x in pieces.costs for us in (*pieces.one(x), *pieces.waits(x)[:2]))
        if at % 4 == 0 and not values["offload"]:
            given = one.cost_of(values, at, done.layout.stages)
            yield f"{key}, given", (given.step_us,)
        yield f"{key}, names", (schedule_of(done), text_of(done), short_of(done), saving_of(done))
        for to in FRAMEWORKS:
            if at % 3 == sorted(FRAMEWORKS).index(to):
                yield f"{key}, {to}", (digest("\n".join(lines_of(to, one.task, done))),)


def short(name: str, framework: str) -> Iterator[Row]:
    """Parts of a step of so few tokens that traffic of gradients is longer than a pass."""
    whole = coster(name, framework)
    one = Coster(replace(whole.task, sequence=96), whole.machine, whole.space)
    for at, values in enumerate(itertools.islice(candidates(name, framework), 7)):
        yield f"{at}", one.cost_of(values | {"micro_batch": 1}, at).parts.values()


def bounds(name: str, framework: str) -> Iterator[Row]:
    """What constraints keep of a space, bounds of what is kept, and the search."""
    one = coster(name, framework)
    numbers, columns = next(one.space.blocks())
    kept = np.ones(len(numbers), bool)
    for rule, keeps in constraints(one.task, one.space, columns, one.machine):
        yield rule, (int(keeps.sum()), digest(keeps))
        kept &= keeps
    rest = {key: column[kept][::97] for key, column in columns.items()}
    yield "kept", (int(kept.sum()), *(int(column.sum()) for column in rest.values()))
    every = {key: column[kept] for key, column in columns.items()}
    for what in (one.state_bound, one.rough_activations, one.compute_bound):
        yield what.__name__, (*what(rest)[:20], what(every).sum(), what(every).max())
    yield "balanced", one.balanced_bound({key: column[:20] for key, column in rest.items()}, numbers[kept][::97][:20])


def searched(framework: str) -> Iterator[Row]:
    """The best layouts of a small space, counts of verdicts, and what constants change."""
    big = coster("sparse", framework)
    space = replace(
        big.space, tp=(1, 2), pp=(1, 2), vpp=(1,), cp=(1,), ep=(4, 12), etp=(1,), micro_batch=(1,), recompute=((), ("full",)), offload=((),)
    )
    small = Coster(big.task, big.machine, space)
    found = search(small, 3)
    yield "best", (x for one in found.best for x in (one.number, one.step_us, one.peak_bytes))
    yield "counts", (x for pair in sorted(found.counts.items()) for x in pair)
    yield "size", (found.size, found.bounded)
    done = plan_shapes([small.task], load_cluster(CLUSTERS[framework]), space.lists, Search(2)).to_dict()
    for at, entry in enumerate(done["shapes"][0]["best"]):
        yield f"entry {at}", (str(x) if isinstance(x, list) else x for x in entry.values() if not isinstance(x, dict))
    if framework == "nemo-24.07":
        both = [replace(small.task, model=replace(small.task.model, name=name, mtp=mtp)) for name, mtp in (("slow", 2), ("quick", 0))]
        yield (
            "order",
            (x for one in plan_shapes(both, load_cluster(CLUSTERS[framework]), space.lists, Search(1)).shapes for x in (one.task.model.name,)),
        )
    if framework == "mindspeed":
        lean = Coster(small.task, small.machine, replace(space, tp=(1,), overlap=("none",), weights=("whole",), recompute=((),), schedule=("1f1b",)))
        for moved in sensitivity(lean, load_cluster(CLUSTERS[framework]), search(lean, 1).best[0]):
            yield f"{moved.constant} x {moved.factor}", (moved.step, moved.behind, moved.winner.number)


def refused() -> Iterator[Row]:
    """What a plan says where nothing fits: memory, a batch, GPUs."""
    for gpus, batch, bytes_of, lists in (
        (6, 12, 80e9, {"tp": (4,)}),
        (8, 9, 80e9, {"ep": (4,), "tp": (1,)}),
        (8, 8, 3e7, {"pp": (1, 2), "tp": (1, 2)}),
    ):
        cluster = replace(load_cluster("hw-dgx-h100"), hbm_bytes=int(bytes_of))
        model = replace(MODELS["sparse"], mtp=0)
        small = {"pp": (1,), "vpp": (1,), "ep": (1, 4), "micro_batch": (1,), "recompute": ((),), "offload": ((),), "weights": ("whole",)} | lists
        try:
            plan_shapes([Task(model, gpus, batch, SEQUENCE)], cluster, small, Search(1))
        except ConfigError as error:
            yield f"{gpus} GPUs, batch {batch}", (str(error),)
    for keys in ({"tp": ()}, {"tp": (1, 1)}, {"ep": (0,)}, {"weights": ("hole",)}, {"offload": (("core_atn",),)}, {"recompute": (("mooe",),)}):
        try:
            Space(**keys)
        except ConfigError as error:
            yield f"space {keys}", (str(error),)


def spaces() -> Iterator[Row]:
    """The lists that a plan tries by itself."""
    for name, framework in itertools.product(("sparse", "windowed", "dense"), CLUSTERS):
        for gpus, sequence in ((5, 4096), (96, 12000)):
            one = coster(name, framework)
            task = replace(one.task, gpus=gpus, sequence=sequence)
            yield f"{name} {framework} {gpus}", (str(values) for values in default_space(task, one.machine).lists.values())


def wires() -> Iterator[Row]:
    """Rows on the wire by EP system, hot ranks, copies to the host."""
    sparse = MODELS["sparse"].layer
    assert sparse is not None
    for framework, name in CLUSTERS.items():
        on = machine_of(load_cluster(name))
        d = on.domain
        for layout in (
            Layout(tp=2, ep=d, dp=d),
            Layout(tp=2, ep=2 * d, etp=2, dp=4 * d),
            Layout(ep=3, dp=6, etp=2),
            Layout(tp=4, ep=3 * d, dp=3 * d),
            Layout(),
        ):
            at = (layout.tp, layout.ep, layout.etp)
            row, peers = 2.0 * sparse.hidden, Peers(layout.ep, layout.etp, tp=layout.tp)
            yield f"{framework} {at}", [exchange(on, sparse, peers, Rows(700.0, row, row), system).dispatch for system in SYSTEMS[3:6]]
            yield f"{framework} {at} bounds", [least_us(on, sparse, peers, Rows(700.0, row, row), system, 9.0) for system in SYSTEMS[6:]]
        yield f"{framework}, host", (host_rate(on), on.cluster.bf16_flops_per_us, on.cluster.fp8_flops_per_us)
        own = PassCost(3.0, 4.0, 2.0, parts={"a": 9.0})
        late = own + beside(MODELS["sparse"], on, Layout(), 0, own, offloaded=4e5)
        yield f"{framework}, copied", (*astuple(late)[:9], *late.parts.values())
    yield "hottest", (hottest(24, ranks, spread) for ranks in (1, 2, 4, 12, 24) for spread in (0.0, 0.256, 0.6))
    layout = Layout(tp=2, ep=4, etp=2, dp=4)
    for name, model in MODELS.items():
        for moe in [True] * (model.layer is not None) + [False] * (model.dense_layers > 0):
            sets = [(module,) for module in OFFLOADED if moe or not module.startswith(("expert", "moe"))]
            yield (
                f"swapped {name} {moe}",
                (offloaded_bytes(model, layout, moe, saving, RECIPES["fp8"], one) for saving in (Saving(), Saving(FINE)) for one in sets),
            )


def pieces() -> Iterator[Row]:
    """Pieces with Rows in place of closed forms, and with merged blocks."""
    for name, framework in itertools.product(("sparse", "lite", "windowed"), ("megatron", "mindspeed")):
        one = coster(name, framework)
        layout = Layout(tp=2, ep=4, dp=4, micro_batch=3)
        for overlap, ep, block in itertools.product(("none", "pair"), (None, ROW), (None, BlockTimes(400.0, 900.0, 1100.0))):
            training_recipe = replace(one.task.training_recipe, recompute=("moe_act",))
            asked = (one.task.model, one.machine, layout, SEQUENCE, "deepep", overlap, training_recipe, 1.25, ep, ("core_attn",), RECIPES["fp8"])
            made = pieces_of(*asked, block)
            yield f"{name} {framework} {overlap} {ep is None} {block is None}", (us for x in made.costs for us in (*made.one(x), made.waits(x)[0]))


def times() -> Iterator[Row]:
    """Schedules of a plan: work, ramps, what ranks hold."""
    for schedule in SCHEDULES:
        v, two = (2 if schedule in V_SHAPED else 1), schedule == "1f1b"
        for p, m in ((2, 4), (4, 8), (4, 37)):
            for vpp in (1, 3) if two else (v,):
                layout = Layout(pp=p, vpp=vpp, micro_batches=m)
                steady = np.arange(1.0, 1.0 + layout.chunks) ** 1.5
                paces = (
                    x
                    for cell in ((3.0, 7.0, 2.0, 11.0), (5.0, 4.0, 4.5, 13.0), (8.0, 1.0, 9.0, 17.0))
                    for x in astuple(ramp_of(schedule, p, vpp, cell, m))
                )
                held = (float(x) for rank in range(p) for pair in (False, True) for x in peaks(schedule, layout, rank, pair).sum(axis=0))
                yield f"{schedule} {p} {vpp} {m}", (*work_of(schedule, layout, steady), *paces, *held)


def splits() -> Iterator[Row]:
    """Splits of layers of drawn times over chunks."""
    for at in range(6):
        draw = random.Random(at)
        layers = [draw.choice((1.0, 1.25, 2.0))] * draw.choice((12, 19, 26))
        weights = (draw.choice((0.1, 0.25)), *[0.75] * draw.choice((0, 2)), *layers, *[2.5] * draw.choice((0, 1)), draw.choice((0.5, 1.75)))
        letters = "E" + "t" * (len(weights) - 2) + "L"
        for ranks, rounds in ((1, 1), (3, 1), (4, 2), (3, 3), (2, 4), (5, 1)):
            ends = best_split(weights, ranks, rounds)
            chunks = np.diff(np.concatenate([[0.0], np.cumsum(weights)])[[0, *ends]]).reshape(rounds, ranks)
            yield f"{at}, {ranks} x {rounds}", (stage_text(letters, ends), pace(chunks), stage_text(letters, slots(weights, ranks, rounds)))
            if rounds == 1:
                yield f"{at}, v {ranks}", (stage_text(letters, v_split(weights, ranks)),)
    yield "front", front([(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (2.0, 1.0), (0.5, 3.0)])


CASES: Cases = {
    **{one.__name__: one for one in (refused, spaces, wires, pieces, times, splits)},
    **{f"{name}, {framework}, {one.__name__}": partial(one, name, framework) for name, framework in PLANNED for one in (plans, bounds)},
    "short": partial(short, "sparse", "megatron"), **{f"{framework}, searched": partial(searched, framework) for framework in CLUSTERS},
}  # fmt: skip
