"""A tiny CAIS under every order of events: groups, throttling, sums and loads that merge, evictions and timeouts at any moment.

GPU 0 is the home of every address. Thread block t of every GPU registers, starts with its group, adds to sum t and then loads it.
`check_cais(CaisConfig(...))` is a proof for its machine: every GPU gets every whole sum, and all tables end empty.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dysharp.protocol import merging
from dysharp.protocol.frozen import Table
from tests.protocol.checker import groups, summing
from tests.protocol.checker.explore import Explored, explore

Message = tuple[str, int, int]
"""(kind, GPU, thread block): a contribution or a load on its way to the port, its response on the way back ("data": to that GPU alone)."""
Step = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class CaisConfig:
    """`blocks`: thread blocks of a GPU. `places` of the merge table, `entries` of the group table. `lead`: groups that a GPU may be ahead.

    `orders[gpu]`: the order in which it registers; (): every GPU in the order of the numbers. `timeouts`: entries may leave at any moment.
    """

    gpus: int = 3
    blocks: int = 2
    places: int = 1
    entries: int = 1
    lead: int = 1
    timeouts: bool = True
    orders: tuple[tuple[int, ...], ...] = ()

    def order(self, gpu: int) -> tuple[int, ...]:
        """Thread blocks in the order in which `gpu` registers them."""
        return self.orders[gpu] if self.orders else tuple(range(self.blocks))

    def value(self, gpu: int, block: int) -> int:
        """What a GPU adds: sums of different contributions differ."""
        return int(10 ** (self.gpus * block + gpu))


@dataclass(frozen=True, slots=True)
class State:
    """`registered`, `stored`, `asked`: thread blocks of each GPU. `home`: (contributions, sum) of each address. `got`: loaded values."""

    table: groups.GroupState
    sums: summing.SumState
    registered: tuple[int, ...]
    released: frozenset[int]
    stored: tuple[frozenset[int], ...]
    asked: tuple[frozenset[int], ...]
    got: tuple[frozenset[tuple[int, int]], ...]
    home: tuple[tuple[int, int], ...]
    wire: frozenset[Message]


def initial(c: CaisConfig) -> State:
    """Nothing has begun."""
    none: tuple[frozenset[int], ...] = (frozenset(),) * c.gpus
    return State(
        groups.empty(c.gpus, c.entries), summing.empty(c.places), (0,) * c.gpus, frozenset(), none, none, (frozenset(),) * c.gpus,
        ((0, 0),) * c.blocks, frozenset(),
    )  # fmt: skip


def _put(values: tuple[frozenset, ...], gpu: int, item: object) -> tuple[frozenset, ...]:  # type: ignore[type-arg]
    return (*values[:gpu], values[gpu] | {item}, *values[gpu + 1 :])


def _add(c: CaisConfig, state: State, sent: tuple[summing.Sent, ...]) -> State:
    home = list(state.home)
    for one in sent:
        assert isinstance(one.address, tuple)
        count, value = home[one.address[1]]
        assert count + one.count < c.gpus, "a contribution came twice"
        home[one.address[1]] = (count + one.count, value + one.value)
    return replace(state, home=tuple(home))


def _complete(c: CaisConfig, state: State, block: int) -> bool:
    """Whether the home has counted all contributions of the others and has its own."""
    return state.home[block][0] == c.gpus - 1 and block in state.stored[0]


def _register(c: CaisConfig, state: State, gpu: int) -> State | None:
    block = c.order(gpu)[state.registered[gpu]]
    table, outputs = groups.step(state.table, groups.Register(block, gpu))
    assert len(table.waiting) <= c.entries, "more groups than entries"
    if any(isinstance(one, groups.Refused) for one in outputs):
        return None
    registered = tuple(n + (i == gpu) for i, n in enumerate(state.registered))
    out = replace(state, table=table, registered=registered)
    if outputs:
        begun = all(block in c.order(i)[: registered[i]] for i in range(c.gpus))
        assert begun, f"group {block} started before every GPU had registered"
        out = replace(out, released=state.released | {block})
    return out


def _arrive(c: CaisConfig, state: State, message: Message) -> State:
    kind, gpu, block = message
    state = replace(state, wire=state.wire - {message})
    if kind == "add":
        sums, sent = summing.step(state.sums, summing.Contribute(("sum", block), c.value(gpu, block), c.gpus - 1))
        return _add(c, replace(state, sums=sums), sent)
    if kind == "data":
        return replace(state, got=_put(state.got, gpu, (block, state.home[block][1])))
    event = merging.Load(("load", block), gpu, c.gpus - 1) if kind == "load" else merging.Response(("load", block))
    merge, outputs = merging.step(state.sums.merge, event)
    state = replace(state, sums=replace(state.sums, merge=merge))
    for one in outputs:
        if isinstance(one, merging.Forward):
            state = replace(state, wire=state.wire | {("response" if one.merges else "data", gpu, block)})
        elif isinstance(one, merging.LoadResponse):
            assert isinstance(one.asker, int)
            state = replace(state, got=_put(state.got, one.asker, (block, state.home[block][1])))
    return state


def _store(c: CaisConfig, state: State, gpu: int, block: int) -> State:
    out = replace(state, stored=_put(state.stored, gpu, block))
    issued = [len(blocks) for blocks in out.stored]
    assert max(issued) - min(issued) <= c.lead, "a GPU is further ahead than throttling allows"
    if gpu == 0:
        count, value = state.home[block]
        return replace(out, home=(*state.home[:block], (count, value + c.value(0, block)), *state.home[block + 1 :]))
    return replace(out, wire=out.wire | {("add", gpu, block)})


def _load(state: State, gpu: int, block: int) -> State:
    out = replace(state, asked=_put(state.asked, gpu, block))
    if gpu == 0:
        return replace(out, got=_put(out.got, 0, (block, state.home[block][1])))
    return replace(out, wire=out.wire | {("load", gpu, block)})


def successors(c: CaisConfig, state: State) -> Iterator[tuple[Step, State]]:
    """Every step that may come next."""
    issued = tuple(len(blocks) for blocks in state.stored)
    for gpu in range(c.gpus):
        if state.registered[gpu] < c.blocks and (after := _register(c, state, gpu)) is not None:
            yield ("register", gpu, state.registered[gpu]), after
        for block in sorted(state.released):
            if block not in state.stored[gpu] and groups.may_issue(issued, gpu, c.lead):
                yield ("store", gpu, block), _store(c, state, gpu, block)
            if block not in state.asked[gpu] and _complete(c, state, block):
                yield ("load", gpu, block), _load(state, gpu, block)
    for message in sorted(state.wire):
        yield message, _arrive(c, state, message)
    for address in list(state.sums.open) if c.timeouts else ():
        assert isinstance(address, tuple)
        sums, sent = summing.step(state.sums, summing.Evict(address))
        yield ("evict", 0, address[1]), _add(c, replace(state, sums=sums), sent)
    for address, entry in list(state.sums.merge.loads.items()) if c.timeouts else ():
        assert isinstance(address, tuple)
        merge, outputs = merging.step(state.sums.merge, merging.Expire(address))
        if outputs or not entry.ready:
            after = replace(state, sums=replace(state.sums, merge=merge))
            if after != state:
                yield ("expire", 0, address[1]), after


def verdict(c: CaisConfig, state: State) -> str | None:
    """The fault of an end, or None."""
    whole = frozenset((block, sum(c.value(gpu, block) for gpu in range(c.gpus))) for block in range(c.blocks))
    if any(len(got) < c.blocks for got in state.got):
        return "deadlock: a load has no answer"
    if any(got != whole for got in state.got):
        return "wrong sum"
    if len(state.table.waiting) or state.sums != summing.SumState(merging.MergeState(c.places, Table()), Table()):
        return "leak: a table is not empty"
    return None


def check_cais(c: CaisConfig, max_states: int = 2_000_000) -> Explored[State]:
    """Every order of events of the machine."""
    return explore(initial(c), lambda state: successors(c, state), lambda state: verdict(c, state), str, max_states)
