"""Better founded times of a plan's best layouts: Rows of the routed experts (to rank), the replayed schedule and a merged Program (to confirm)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dysharp.api.comparison import compare
from dysharp.api.merged_blocks import merged_blocks
from dysharp.api.training import _ep_times
from dysharp.base import PS_PER_US, ByName, Cells, DysharpError, frozen, us_to_ps
from dysharp.planning.cost import Costed, Coster, RowKey, row_key
from dysharp.planning.names import schedule_of, simulated
from dysharp.planning.search import Tick
from dysharp.training import Block, BlockTimes, EpTimes, Replay, Times, make_schedule, replay, step_costs, step_graph

if TYPE_CHECKING:
    from dysharp.analysis import Row


@frozen
class Ranked:
    """The best by closed forms in the order of their Rows, with (step by closed forms, step by Rows) in microseconds; why others have no Row."""

    order: tuple[Costed, ...]
    steps: tuple[tuple[float, float | None], ...]
    left_out: Cells
    rows: int
    """Different Rows, forward and backward."""


def _rows_for(coster: Coster, best: tuple[Costed, ...], tick: Tick) -> tuple[dict[RowKey, EpTimes], Cells]:
    """Rows of the routed experts of `best`, from the store where they are kept, and {EP group: why it has none}."""
    found: dict[RowKey, EpTimes] = {}
    left_out: Cells = {}
    for done, one in enumerate(best):
        key = row_key(one.values)
        name = f"{one.values['system']} over {one.values['ep']} GPUs"
        if key in found or name in left_out or one.values["ep"] == 1:
            continue
        tick(done, len(best), f"Rows of {name}")
        try:
            found[key] = _rows(coster, one)[1]
        except DysharpError as reason:
            left_out[name] = str(reason)
    return found, left_out


def _asked(coster: Coster, one: Costed) -> ByName:
    tokens = one.layout.tokens(coster.task.sequence) // one.layout.tp
    return {"model": coster.task.model.layer, "cluster": coster.machine.cluster, "gpus": one.values["ep"], "tokens": tokens}


def _rows(coster: Coster, one: Costed) -> tuple[Row, EpTimes]:
    """The Row of a forward pass of the routed experts, and the times of both passes."""
    system = simulated(one.values["system"], coster.machine.cluster)
    if system is None or one.values["etp"] > 1:
        raise DysharpError(f"no simulated system is {one.values['system']}" if system is None else "ranks of a simulated system have whole experts")
    asked = _asked(coster, one)
    forward, backward = (compare([system], direction=way, **asked).rows[0] for way in ("fwd", "bwd"))
    return forward, _ep_times(forward, backward)


def ranked_by_rows(coster: Coster, best: tuple[Costed, ...], tick: Tick = lambda *_: None) -> Ranked:
    """`best`, ordered by their cost with Rows; layouts without a Row follow with their closed-form cost."""
    rows, left_out = _rows_for(coster, best, tick)
    own = Coster(coster.task, coster.machine, coster.space, rows)
    pairs = [(one, own.cost_of(one.values, one.number)) for one in best if row_key(one.values) in rows]
    pairs.sort(key=lambda pair: pair[1].step_us)
    rest = [one for one in best if row_key(one.values) not in rows]
    steps = [*((one.step_us, again.step_us) for one, again in pairs), *((one.step_us, None) for one in rest)]
    return Ranked((*(again for _, again in pairs), *rest), tuple(steps), left_out, 2 * len(rows))


@frozen
class Confirmed:
    """One layout at every fidelity, in microseconds of a step. None: `left_out` says why."""

    closed: float
    replayed: float
    rows: float | None
    merged: float | None
    left_out: str
    done: Replay

    def sentence(self) -> str:
        """What the fidelities say of the layout."""
        parts = [f"closed forms {self.closed / 1e6:.3f} s", f"its schedule replayed {self.replayed / 1e6:.3f} s"]
        if self.rows is not None:
            parts.append(f"experts by Rows {self.rows / 1e6:.3f} s")
        if self.merged is not None:
            parts.append(f"whole MoE blocks merged in one Program {self.merged / 1e6:.3f} s")
        why = f". No Program: {self.left_out}" if self.left_out else ""
        return "The best at every fidelity: " + ", ".join(parts) + why + "."


def confirm(coster: Coster, one: Costed) -> Confirmed:
    """The replay of a layout's whole schedule with the plan's pieces; its experts by Rows; its MoE blocks, or pairs of them, as merged Programs."""
    done = replayed(coster, one)
    makespan = done.makespan / PS_PER_US
    if coster.task.model.layer is None or one.values["ep"] == 1:
        return Confirmed(one.step_us, makespan, None, None, "no expert communication", done)
    rows = None
    try:
        row, ep = _rows(coster, one)
        known = {row_key(one.values): ep}
        rows = Coster(coster.task, coster.machine, coster.space, known).cost_of(one.values, one.number).step_us
        block = _block(coster, one, row, ep)
        merged = Coster(coster.task, coster.machine, coster.space, known, block).cost_of(one.values, one.number).step_us
    except DysharpError as reason:
        return Confirmed(one.step_us, makespan, rows, None, str(reason).rstrip("."), done)
    return Confirmed(one.step_us, makespan, rows, merged, "", done)


def _block(coster: Coster, one: Costed, row: Row, ep: EpTimes) -> BlockTimes:
    """The MoE block of a layout as merged Programs: attention, norms, router and shared experts beside its routed experts; the mean of its kinds."""
    task = coster.task
    training_recipe = replace(task.training_recipe, dispatcher="", recompute=one.values["recompute"])
    block = Block(task.model, coster.machine, one.layout, task.sequence, training_recipe)
    found = merged_blocks([row], [ep], block, **_asked(coster, one))[0]
    layers = [task.model.kind(n) for n in range(task.model.n_layers) if task.model.is_moe(n)]
    return BlockTimes(*(sum(getattr(found[kind], name) for kind in layers) / len(layers) for name in ("forward", "backward", "pair")))


def replayed(coster: Coster, one: Costed) -> Replay:
    """The schedule of a layout with the plan's cost of every chunk."""
    layout, task = one.layout, coster.task
    name = schedule_of(one)
    own = replace(task.training_recipe, dispatcher="", recompute=())
    costs = step_costs(task.model, coster.machine, layout, task.sequence, None, 1 + (name == "dualpipe"), own)
    forward, backward, weights = (tuple(us_to_ps(us) for us in way) for way in zip(*coster.chunks_us(one), strict=True))
    times = replace(costs.times, cells=Times(forward, backward, weights, costs.times.cells.hop))
    return replay(step_graph(make_schedule(name, layout.pp, layout.micro_batches, layout.vpp), times))
