"""nvls-groups: multicast groups that were made before the step, for the sets of GPUs that tokens need most; other GPUs get unicasts.

| step | op |
|---|---|
| a token to the members of a group | MULTICAST (`multimem.st`); a token takes groups whose other members it needs anyway |
| a token to its other GPUs | PUT |
| the sum over the members of a group | PULL_REDUCE (`multimem.ld_reduce`); the source adds pulled sums and pushed rows |

Overlap is that of `fusion-only`. Each member gets all rows of a group, so one offset for all members leaves no holes.
"""

import numpy as np

from dysharp.base import ByName
from dysharp.program import I32, I64, Discipline, Framing, Kind, To, frozen, runs, spans
from dysharp.specs import choice_int, choice_str
from dysharp.systems import SUMS, Costs, Facts, Moves, Reach, Shown, system
from dysharp.systems.building import MULTIMEM, STORE, WIRE, LayerBuilder, fused, placed
from dysharp.systems.building.groups import Wanted, multicasts, pieces
from dysharp.systems.building.windows import sessions_that_fit
from dysharp.workload import Routing, Rows, one_copy_per_gpu


@frozen
class Options:
    """`groups`: places for groups in the switch. `own`: the issuer's copy is "sent" to the switch and back, as today, or "kept" (nccl #2072).

    A kept group has one owner; sent groups serve all members. `history`: groups are made for sets drawn from the "loads" of the experts, or for the
    "tokens" of the pass, an upper end. `cover`: "greedy", or "exact", the fewest rows, up to 10 GPUs. `offsets`: of rows, from "counts" that the
    GPUs tell each other, or of fixed places ("capacity": `capacity` percent of the use in the history; tokens beyond go by unicast).
    `reduction`: "pull", or "push", in which each GPU adds at the source (`red`). `dispatch_window`, `combine_window`: tokens in flight per source
    GPU, 0 = automatic. `dispatch`: format of rows, as of `dysharp`. `compute` = False leaves the GEMMs out: a row is ready when it has arrived.
    """

    groups: int = choice_int("nvls_groups.groups")
    own: str = choice_str("nvls_groups.own")
    history: str = choice_str("nvls_groups.history")
    cover: str = choice_str("nvls_groups.cover")
    offsets: str = choice_str("nvls_groups.offsets")
    capacity: int = choice_int("nvls_groups.capacity")
    reduction: str = choice_str("nvls_groups.reduction")
    dispatch_window: int = choice_int("nvls_groups.dispatch_window")
    combine_window: int = choice_int("nvls_groups.combine_window")
    dispatch: str = "rows"
    compute: bool = True

    def pieces(self, routing: Routing) -> I64:
        """`groups.pieces` with these options."""
        capacity = self.capacity if self.offsets == "capacity" else 0
        return pieces(routing, Wanted(self.groups, self.own == "sent", self.history == "tokens", self.cover == "exact", capacity))

    @property
    def framing(self) -> Framing:
        """Of multicasts and pulls."""
        return MULTIMEM if self.own == "sent" else STORE


def _sends(routing: Routing, options: Options) -> Rows:
    """A token goes up once for each of its multicasts and unicasts, and down once to every other GPU that it needs."""
    copies, down = one_copy_per_gpu(routing)
    return copies - multicasts(options.pieces(routing), routing).reshape(routing.n_gpus, -1).sum(axis=1), down


def _returns(routing: Routing, options: Options) -> Rows:
    """Pulled sums mirror `sends`; pushed sums go by unicast."""
    return _sends(routing, options) if options.reduction == "pull" else one_copy_per_gpu(routing)


FACTS = Facts(
    source="PTX multimem.st, multimem.ld_reduce; nccl #2072, #2077; docs/design/0041-beyond-the-papers.md",
    options=Options,
    moves=Moves(_sends, _returns, formats=WIRE),
    costs=Costs(permutes=0, fused=True, drops="instructions, the making of groups, the list of rows by expert that GEMMs gather by"),
    reach=Reach(switch=SUMS),
    shown=Shown("#999933"),
    today=True,
)


class _RowUnits:
    """Pairs of a layer by the transfer that carries them.

    `alone`: pairs that go by themselves. `together`: the others, by multicast; multicast i has `count[i]` of them from `first[i]` on.
    """

    def __init__(self, layer: LayerBuilder, options: Options) -> None:
        self.layer, p = layer, layer.p
        piece = options.pieces(layer.routing)[p.token, p.gpu]
        self.alone = np.flatnonzero(piece == 0)
        grouped = np.flatnonzero(piece > 0)
        self.together: I64 = grouped[np.lexsort((p.gpu[grouped], piece[grouped], p.token[grouped]))]
        self.first, self.count = runs(p.token[self.together], piece[self.together])
        self.token: I32 = p.token[self.together[self.first]]
        self.source: I32 = p.source[self.together[self.first]]

    def most(self, window: int, trains: int = 1) -> int:
        """Ops of `window` tokens in flight, of `trains` each."""
        return window * trains * -(-(len(self.alone) + len(self.token)) // max(1, self.layer.routing.n_tokens))

    def dispatch(self, window: int, framing: Framing, counts: I32 | None) -> None:
        """Multicasts and unicasts by token, behind the region tile `counts[gpu]`."""
        layer, p = self.layer, self.layer.p
        issuer = layer.per_gpu(Discipline.SMALLEST_KEY, "dispatch")
        trains = len(layer._trains(framing, True)[0])
        windows = layer.semaphores(self.most(window, trains), "dispatch_window")
        n = len(self.alone)
        ways = (
            ("dispatch.group", Kind.MULTICAST, framing, self.together, self.first, self.count, None),
            ("dispatch.put", Kind.PUT, STORE, self.alone, np.arange(n), np.ones(n, np.int64), p.gpu[self.alone]),
        )
        for name, kind, how, order, first, count, to in ways:
            lead = order[first]
            template = layer.transfer(name, kind, "dispatch", "copy", layer.sent_buffer, layer.arrived, framing=how)
            batch = layer._send(template, how, issuer, p.token[lead], p.source[lead], first, count, 1, to=to, by_rows=True, order=order)
            layer.b.hold(windows[batch.node], batch.op)
            layer.wait_tiles(batch.op, None if counts is None else counts[batch.node])

    def combine(self, window: int, framing: Framing) -> I32:
        """Pulls and pushes. Returns `[useful rows]` the op that carries each row."""
        layer, p, order = self.layer, self.layer.p, self.together
        rows = p.rows[order]
        template = layer.transfer("combine.pull", Kind.PULL_REDUCE, "combine", "sum", layer.result, "partial", framing=framing)
        to = To(self.count, p.gpu[order], rows, layer.row_of[spans(p.slot_ptr[order], rows)])
        columns: ByName = {"issuer": layer.per_gpu(Discipline.SMALLEST_KEY, "combine")[self.source], "key": self.token, "targets": 1}
        pulls = layer.add(template, self.source, to=to, **columns, **layer.result_columns)
        layer.limit(self.most(window), "combine_window", self.source, pulls)
        layer.limit(sessions_that_fit(layer.model, layer.cluster, layer.combine_aux), "reduction_table", self.source, pulls)
        row, _ = layer.partial_rows(p.source[self.alone], p.token[self.alone])
        alone = p.push_order[np.isin(p.push_order, self.alone)]
        template = layer.transfer("combine.put", Kind.PUT, "combine", "sum", layer.result, "partial")
        columns = {"issuer": layer.per_gpu(Discipline.READY_FIFO, "combine.put")[p.gpu[alone]], "key": p.token[alone]}
        into = row[np.searchsorted(self.alone, alone)]
        puts = layer.puts(template, p.gpu[alone], p.source[alone], into, **columns, **layer.result_columns)
        of_pair = placed(len(p.gpu), np.append(order, alone), np.append(np.repeat(pulls, self.count), puts))
        return np.repeat(of_pair, p.rows)


@system("nvls-groups", FACTS)
def plan(layer: LayerBuilder, options: Options) -> None:
    """Token-centric fusion on today's switches with groups that exist before the tokens."""
    units, pulls = _RowUnits(layer, options), options.reduction == "pull"
    dispatch, combine = layer.windows(options.framing, options.dispatch_window, options.combine_window)
    if not pulls:  # pushed sums have no window, as in `fusion-only`; beside them a window of Dispatch would only hold it back
        dispatch = options.dispatch_window or layer.tokens
    tells = options.offsets == "counts" and layer.direction == "fwd" and options.groups > 0
    units.dispatch(dispatch, options.framing, layer.exchange(4 * options.groups, name="counts") if tells else None)
    fused(layer, units.combine(combine, options.framing) if pulls else layer.combine_puts(Discipline.READY_FIFO).of_useful_row)
