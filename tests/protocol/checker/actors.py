"""The actors of the tiny machine. An actor has a state and a step for one message. Actors share messages only.

| actor | state | its messages |
|---|---|---|
| hub of a GPU | AL Table, memory, experts, tracker | data, ask, and answers of its memory |
| port (plane, source) | reduction table | request, response, and timeouts |
| OR table of a GPU | readiness | note |
| dispatch of a token | LSU entry, merged acknowledgements | ack, and retries |
| combine of a token | LSU entry, pieces, result | piece, and retries |
"""

from dataclasses import dataclass, replace
from typing import Any, cast

from dysharp.protocol import al_table, collect, lsu, readiness, reduction, tracker
from dysharp.protocol.frozen import Table
from tests.protocol.checker.config import Config, expert_function

Message = tuple[str, int, int, int, int, int]
# (kind, token, attempt, place, count, value); place: hub or expert, -1 = not used
Event = tuple[Any, ...]  # a message, or an internal event of the actor: (kind, its object)


def message(kind: str, token: int, attempt: int = 0, place: int = -1, count: int = 0, value: int = 0) -> Message:
    """A message with the fields that its kind uses."""
    return (kind, token, attempt, place, count, value)


# ---- hub ---------------------------------------------------------------------------------------------------

Row = tuple[int, int]  # (value, gate weight)
Place = tuple[int, int]  # (local expert, layout index)
Packet = tuple[str, int, int]  # (data or ask, token, attempt)


@dataclass(frozen=True, slots=True)
class Hub:
    """The state of a hub with its memory and experts."""

    al: al_table.AlState
    tiles: tracker.TrackerState
    rows: Table[Place, Row]
    """Rows that stores have written."""
    outputs: Table[Place, int]
    """Outputs of the experts."""
    open: Table[Packet, tuple[int, int]]
    """Packets under way: (copies left, sum so far)."""
    work: Table[tracker.Tile, tuple[Row, ...] | None]
    """Tiles with a GEMM to run. None: GEMM-1. Rows: GEMM-2 on these rows, which GEMM-1 has read."""


def make_hub(config: Config, gpu: int) -> Hub:
    """A hub before any message."""
    shape = tracker.TileShape(config.tile_rows, 1, config.n_active(gpu))
    al = al_table.empty(config.experts_per_gpu, config.tlb_entries, config.mshrs)
    return Hub(al, tracker.empty(shape, config.tracker_entries), Table(), Table(), Table(), Table())


def hub_step(config: Config, gpu: int, hub: Hub, event: Event) -> tuple[Hub, list[Message]] | None:
    """The hub after one event: a message `data` or `ask` (a lookup), ("answer", key) of memory, ("gemm", tile) ended.

    None: all miss registers are taken, so the packet waits.
    """
    if event[0] == "gemm":
        return _compute(config, gpu, hub, event[1])
    if event[0] == "answer":
        al, outputs = al_table.step(hub.al, al_table.MemoryAnswer(event[1]))
    else:
        kind, token, attempt, expert, _, _ = event
        packet = (kind, token, attempt)
        if packet not in hub.open:
            hub = replace(hub, open=hub.open.put(packet, (len(config.local(token, gpu)), 0)))
        key = (expert - gpu * config.experts_per_gpu, token)
        al, outputs = al_table.step(hub.al, al_table.Lookup(key, packet, kind == "data"))
        if any(isinstance(output, al_table.Full) for output in outputs):
            return None
    hub = replace(hub, al=al)
    sent: list[Message] = []
    for output in outputs:
        hub = _hub_output(config, gpu, hub, output, sent)
    return hub, sent


def _hub_output(config: Config, gpu: int, hub: Hub, output: al_table.Output, sent: list[Message]) -> Hub:
    if isinstance(output, al_table.BlockBound):
        (expert, token), layout = output.key, output.layout
        state, _ = tracker.step(hub.tiles, tracker.Bind(expert, layout, token))
        return replace(hub, tiles=state)
    if isinstance(output, al_table.Found):
        act = _write if cast(Packet, output.packet)[0] == "data" else _read
        return act(config, gpu, hub, output, sent)
    assert not isinstance(output, al_table.Unbound), f"{output.packet} reads {output.key}, which nobody wrote"
    return hub


def _write(config: Config, gpu: int, hub: Hub, entry: al_table.Found, sent: list[Message]) -> Hub:
    """A copy becomes visible. The last copy of a packet sends its acknowledgement."""
    expert, packet = entry.key[0], cast(Packet, entry.packet)
    _, token, attempt = packet
    data = config.tokens[token]
    rank = data.experts.index(expert + gpu * config.experts_per_gpu)
    hub = replace(hub, rows=hub.rows.put((expert, entry.layout), (data.value, data.weights[rank])))
    state, outputs = tracker.step(hub.tiles, tracker.ChunkStore(expert, entry.layout, 0, 1))
    hub = replace(hub, tiles=state)
    for output in outputs:
        if isinstance(output, tracker.TileReady):
            hub = replace(hub, work=hub.work.put(output.tile, None))
    assert packet in hub.open, f"{packet} was acknowledged before all its copies were written"
    left = hub.open[packet][0] - 1
    if left:
        return replace(hub, open=hub.open.put(packet, (left, 0)))
    sent.append(message("ack", token, attempt, gpu, len(config.local(token, gpu))))
    return replace(hub, open=hub.open.without(packet))


def _compute(config: Config, gpu: int, hub: Hub, tile: tracker.Tile) -> tuple[Hub, list[Message]]:
    """The thread block of the tile's next GEMM ends. GEMM-1 has read rows. GEMM-2 writes outputs, sends notices."""
    expert, first = tile[0], tile[1] * config.tile_rows
    places = [(expert, layout) for layout in range(first, min(first + config.tile_rows, config.n_active(gpu)[expert]))]
    read = hub.work[tile]
    if read is None:
        state, outputs = tracker.step(hub.tiles, tracker.Gemm1Block(tile))
        assert tracker.RowReady(tile) in outputs, f"GEMM-1 of {tile} ends with {outputs}"
        rows = tuple(hub.rows.get(place) or (0, 0) for place in places)
        return replace(hub, tiles=state, work=hub.work.put(tile, rows)), []
    made = hub.outputs
    for place, (value, weight) in zip(places, read, strict=True):
        assert place not in made, f"{tile} was computed and told twice"
        made = made.put(place, weight * expert_function(expert + gpu * config.experts_per_gpu, value))
    state, told = tracker.step(hub.tiles, tracker.Gemm2Block(tile))
    notes = [message("note", n.token, 0, n.expert + gpu * config.experts_per_gpu) for n in told if isinstance(n, tracker.Notify)]
    return replace(hub, tiles=state, outputs=made, work=hub.work.without(tile)), notes


def _read(config: Config, gpu: int, hub: Hub, entry: al_table.Found, sent: list[Message]) -> Hub:
    """A contribution is read. The last contribution of a packet sends their sum."""
    packet = cast(Packet, entry.packet)
    _, token, attempt = packet
    assert packet in hub.open, f"{packet} was answered before all its experts were read"
    left, total = hub.open[packet]
    left, total = left - 1, total + (hub.outputs.get((entry.key[0], entry.layout)) or 0)
    if left:
        return replace(hub, open=hub.open.put(packet, (left, total)))
    kind = "piece" if config.tokens[token].source == gpu else "response"
    sent.append(message(kind, token, attempt, gpu, len(config.local(token, gpu)), total))
    return replace(hub, open=hub.open.without(packet))


# ---- port --------------------------------------------------------------------------------------------------

Port = reduction.ReductionState[int]


def port_step(config: Config, port: Port, event: Event) -> tuple[Port, list[Message]]:
    """The port after one event: a request, which it replicates, a response, or ("expire", session)."""
    sent: list[Message] = []
    if event[0] == "expire":
        port, outputs = reduction.step(port, reduction.Expire(event[1]))
    else:
        kind, token, attempt, _, count, value = event
        if kind == "request":
            port, outputs = reduction.step(port, reduction.Request((token, attempt), config.remote(token)))
            source = config.tokens[token].source
            sent += [message("ask", token, attempt, e) for e in config.tokens[token].experts if config.hub_of(e) != source]
        else:
            port, outputs = reduction.step(port, reduction.Response((token, attempt), count, value))
    for output in outputs:
        owner, of_attempt = cast(tuple[int, int], output.session)
        sent.append(message("piece", owner, of_attempt, -1, output.count, output.value))
    return port, sent


# ---- source ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """A dispatch or a combine of one token. `merge`: acknowledgements at the switch. `result`: the sum of a combine."""

    lsu: lsu.LsuState
    merge: reduction.ReductionState[int]
    pieces: collect.CollectState[int]
    result: int | None = None
    done: bool = False


def waiting_operation(retries: int) -> Operation:
    """An operation before its issue. Sessions of acknowledgements never meet, so their table has no limit here."""
    return Operation(lsu.empty(1, retries + 1), reduction.empty(1 << 30), collect.empty())


def issue(config: Config, kind: str, token: int, operation: Operation) -> tuple[Operation, list[Message]]:
    """The operation after its issue: the instruction enters, gets its target list and leaves."""
    targets = len(config.tokens[token].experts)
    state, outputs = lsu.step(operation.lsu, lsu.Enter(token, targets))
    if outputs == (lsu.Done(token),):
        return replace(operation, done=True, result=0), []
    pieces, _ = collect.step(operation.pieces, collect.Open(token, targets))
    state, outputs = lsu.step(state, lsu.ListArrived(token))
    return _send(config, kind, replace(operation, lsu=state, pieces=pieces), outputs)


def _send(config: Config, kind: str, operation: Operation, outputs: tuple[lsu.Output, ...]) -> tuple[Operation, list[Message]]:
    """The packets of one attempt: packets that the switch replicates, and packets for the hub of the source."""
    (send,) = outputs
    assert isinstance(send, lsu.Send)
    token, attempt = cast(int, send.tag), send.attempt
    data = config.tokens[token]
    local, remote = config.local(token, data.source), config.remote(token)
    if kind == "dispatch":
        if remote:
            merge, _ = reduction.step(operation.merge, reduction.Request(attempt, remote))
            operation = replace(operation, merge=merge)
        return operation, [message("data", token, attempt, e) for e in data.experts]
    sent = [message("ask", token, attempt, e) for e in local]
    return operation, [message("request", token, attempt), *sent] if remote else sent


def operation_step(config: Config, kind: str, operation: Operation, event: Event) -> tuple[Operation, list[Message]]:
    """The operation after one event: a piece, an acknowledgement, or ("retry", token)."""
    if event[0] == "retry":
        state, outputs = lsu.step(operation.lsu, lsu.Retry(event[1]))
        return _send(config, kind, replace(operation, lsu=state), outputs)
    _, token, attempt, hub, count, value = event
    if kind == "dispatch" and hub != config.tokens[token].source:
        merge, merged = reduction.step(operation.merge, reduction.Response(attempt, count, 0))
        operation = replace(operation, merge=merge)
        if not merged:
            return operation, []
        count = merged[0].count
    pieces, completed = collect.step(operation.pieces, collect.PartialSum(token, attempt, count, value))
    operation = replace(operation, pieces=pieces)
    if completed and isinstance(completed[0], collect.Complete):
        state, _ = lsu.step(operation.lsu, lsu.Finish(token))
        operation = replace(operation, lsu=state, done=True, result=completed[0].value)
    return operation, []


def can_retry(operation: Operation) -> bool:
    """Whether the operation is outstanding and has attempts left."""
    return any(attempt + 1 < operation.lsu.attempts for _, attempt in operation.lsu.outstanding.items())


def or_step(config: Config, before: readiness.ReadinessState, event: Message) -> tuple[readiness.ReadinessState, list[int]]:
    """The OR table after a notice, and the tokens that became ready."""
    after, outputs = readiness.step(before, (event[1], event[3]))
    ready = [o.token for o in outputs if isinstance(o, readiness.TokenReady)]
    for token in ready:
        # `checker.reduction` relies on this rule, so each step checks it. The final tensor would show a fault late.
        announced = {event[3], *(before.on_chip.get(token) or ()), *(before.memory.get(token) or ())}
        assert announced == set(config.tokens[token].experts), f"token {token} is ready after notices of {sorted(announced)}"
    return after, ready
