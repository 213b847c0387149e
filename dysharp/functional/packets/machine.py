"""The packet machine: a Program as instructions, packets and tables; every order of events that the channels allow."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError, EmulationMismatch
from dysharp.functional.faults import Faults
from dysharp.functional.layer import UNBOUND, ExpertMemory, Layout, Record, Tensors
from dysharp.functional.network.queues import Channels, Flight, Wire
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.network.switch import Switch
from dysharp.functional.network.values import Format, Value
from dysharp.functional.orders import make_pool
from dysharp.functional.packets.hub import Hub, Key
from dysharp.functional.packets.instructions import DYNAMIC, EXPLICIT, MAX_TAGS, STRIDE, Decoder, Instruction, check_program
from dysharp.functional.progress import Progress
from dysharp.functional.rows import Outcome
from dysharp.functional.sums import Expression
from dysharp.isa.commands import Command, Stage, virtual_channel
from dysharp.isa.packets import Packet, decode
from dysharp.program import Kind, Program, Tail, Trace
from dysharp.program.builder import PULLS, PUSHES
from dysharp.protocol import collect, lsu, readiness
from dysharp.specs import Cluster, load_cluster
from dysharp.systems.machine import sessions_of_table

Array = NDArray[Any]

ISSUE, MOVE, LIST, MEMORY, LOCAL, EXPIRE, RETRY, DONE = range(8)
DELIVERIES, COMPLETIONS = frozenset({MOVE, LOCAL}), frozenset({DONE})
NO_QUEUE = 1 << 30  # plain stores and loads do not pass the MultimemQ
Session = tuple[int, int, int]  # source, tag, attempt


def run_packets(
    program: Program,
    tensors: Tensors,
    order: str = "random",
    *,
    seed: int = 0,
    trace: Trace | None = None,
    faults: Faults | None = None,
    cluster: str | Cluster = "paper-gh200-nvl32",
    dump_token: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Outcome, Statistics]:
    """Interpret `program` on `tensors`, packet by packet. Arguments as `run_rows`; table sizes are the cluster's unless `faults` shrinks them.

    `dump_token`: list the packets of this token in `Statistics.dump`. Raises EmulationMismatch when nothing can happen and ops are left,
    ConfigError for parts of a Program that packets do not carry.
    """
    if (order == "trace") != (trace is not None):
        raise ConfigError(f"order {order!r}: found {'no' if trace is None else 'a'} Trace, expected one for order trace only")
    check_program(program)
    machine = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    run = _PacketMachine(program, tensors, order, seed, trace, faults or Faults(), machine, dump_token)
    return run.run(progress), run.statistics


class _PacketMachine:
    def __init__(
        self, p: Program, t: Tensors, order: str, seed: int, trace: Trace | None, faults: Faults, cluster: Cluster, dump_token: int | None
    ) -> None:
        self.p, self.t, self.trace, self.faults, self.dump_token = p, t, trace, faults, dump_token
        self.statistics = Statistics()
        self.record = Record(chunk=128 // t.number.bytes)
        self.layout = Layout(p, t.routing)
        self.memory = ExpertMemory(t, self.layout, self.record)
        self.backward = t.saved is not None
        self.fmt = Format(t.number)
        self.decoder = Decoder(p, self.layout, cluster.links_per_gpu)
        self.kind, self.node, self.key = p.kinds().tolist(), p.ops.node.tolist(), p.ops.key.tolist()
        late = frozenset({MEMORY}) if faults.late_memory else None
        self.pool = make_pool("late-delivery" if late and order == "random" else order, seed, late or DELIVERIES, COMPLETIONS)
        self.channels = Channels(self.statistics, self._head, self._followed)
        self._make_tables(cluster)
        self._make_output()
        self.missing: Counter[int] = Counter()
        self.entering: dict[int, deque[Instruction]] = defaultdict(deque)
        self.row_seen: set[tuple[int, int]] = set()
        self.row_missing = np.repeat(p.regions.row_bytes, np.diff(p.regions.row_ptr)).tolist()
        self.tile_missing = [end - first for _, first, end in map(self.layout.tile, range(p.n_tiles))]
        self.partial: dict[int, dict[int, tuple[Array, Expression]]] = defaultdict(dict)
        self.expressions: dict[int, dict[int, Expression]] = defaultdict(dict)
        self._misses: list[tuple[int, Key]] = []
        self._sessions: list[tuple[int, Session]] = []
        self._halves: dict[tuple[int, Session], bytes] = {}
        self._sent = 0
        self.progress = Progress(p, self)

    def _make_tables(self, c: Cluster) -> None:
        f, slots = self.faults, self.t.routing.placement.slots_per_gpu
        has_weights = not self.backward
        row_bytes = self.t.experts.hidden * self.t.number.bytes + (4 if has_weights and self._carries_weights() else 0)
        self.hubs = [
            Hub(
                gpu,
                slots,
                self.layout,
                self.memory,
                self.statistics,
                tlb_entries=f.tlb_entries or c.al_tlb_entries,
                ts_entries=f.tracker_entries or c.ts_entries,
                row_bytes=row_bytes,
                miss=self._miss,
                tile_ready=lambda tile: self.progress.fire(Tail.TILE_READY, tile),
            )
            for gpu in range(self.p.n_nodes)
        ]
        entries = f.reduction_entries or sessions_of_table(c)
        self.switch = Switch(entries, self.fmt, self.statistics, self.channels, slots, self._session_made)
        self.queues = [(lsu.empty(c.multimemq_entries), lsu.empty(NO_QUEUE)) for _ in self.hubs]
        self.collects: list[collect.CollectState[Any]] = [collect.empty() for _ in self.hubs]
        told = self.p.regions.row_notify
        self._expected = Counter(told[told >= 0].tolist())
        by_gpu: dict[int, list[int]] = defaultdict(list)
        for op in self._expected:
            by_gpu[self.node[op]].append(op)
        self._or_index = {op: i for ops in by_gpu.values() for i, op in enumerate(ops)}
        self._or_ops = by_gpu
        size = f.tracker_entries or c.or_entries
        self.ors = [readiness.empty(tuple(self._expected[op] for op in by_gpu[gpu]), size) for gpu in range(self.p.n_nodes)]
        self.statistics.table("or", entries=size)
        self.statistics.table("multimemq", entries=c.multimemq_entries)

    def _carries_weights(self) -> bool:
        dispatch = [i for i, t in enumerate(self.p.templates) if t.operator == "dispatch" and t.fn == "copy"]
        ops = np.flatnonzero(np.isin(self.p.ops.template, dispatch))
        return bool(len(ops)) and bool((self.p.wires.aux[self.p.ops.wire[ops]] > 0).any())

    def _make_output(self) -> None:
        r, n = self.t.routing, self.t.number
        self.out = n.poison((r.n_tokens, self.t.experts.hidden))
        self.out[(r.slot < 0).all(axis=1)] = 0
        self.gate_grad = np.zeros((r.n_tokens, r.topk), n.work) if self.backward else None
        self.column_of: dict[tuple[int, int], int] = {
            (int(token), int(r.slot[token, column])): int(column) for token, column in np.argwhere(r.slot >= 0)
        }

    def run(self, progress: Callable[[int, int], None] | None) -> Outcome:
        steps = (self._issue, self._move, self._list, self._memory, self._local, self._expire, self._retry, self._done)
        self.progress.start()
        events = 0
        while len(self.pool):
            kind, ident = self.pool.pop()
            steps[kind](ident)
            events += 1
            if progress and not events & 0xFFF:
                progress(self.progress.n_done, self.p.n_ops)
        if self.progress.n_done < self.p.n_ops:
            raise EmulationMismatch(f"watchdog: {self.progress.stuck()}{self._waiting()}")
        self._copy_out()
        self._count_faults()
        for token, chunks in self.expressions.items():
            self.record.sums[token] = tuple(chunks[c] for c in sorted(chunks))
        saved = None if self.backward else self.memory.saved()
        return Outcome(self.out, self.gate_grad, self.record, saved, events)

    def _count_faults(self) -> None:
        """How often small tables really overflowed."""
        tables, injected = self.statistics.tables, self.statistics.injected
        if self.faults.tlb_entries:
            injected["al-tlb"] += tables["al_tlb"]["misses"]
        if self.faults.tracker_entries:
            injected["tracker"] += tables["ts"]["spills"] + tables["or"]["spills"]

    def _waiting(self) -> str:
        """Table entries that still wait, for the watchdog."""
        found = []
        for gpu, hub in enumerate(self.hubs):
            found += [f"GPU {gpu} AL miss of expert {e}, token {token}" for e, token in hub.al.pending]
            found += [f"GPU {gpu} tag {tag} outstanding" for state in self.queues[gpu] for tag in state.outstanding]
        return "; tables: " + ", ".join(found[:3]) if found else ""

    # ---- pool ------------------------------------------------------------------------------------------------------------------

    def _time(self, column: str, op: int) -> int:
        return 0 if self.trace is None else int(getattr(self.trace, column)[op])

    def _head(self, channel: int, tag: int) -> None:
        op = self.decoder.all[tag].op if tag < len(self.decoder.all) else -1
        time = self._time("done", op) if op >= 0 else 0
        self.pool.add((MOVE, channel), time)

    def may_issue(self, op: int) -> None:
        self.pool.add((ISSUE, op), self._time("issue", op))

    def may_respond(self, member: int) -> None:
        """No Program that packets carry holds a response back (`check_program`)."""

    def _miss(self, gpu: int, key: Key) -> None:
        self._misses.append((gpu, key))
        self.pool.add((MEMORY, len(self._misses) - 1))

    def _memory(self, ident: int) -> None:
        gpu, key = self._misses[ident]
        self.statistics.injected["first-touch"] += self.faults.late_memory
        self.hubs[gpu].memory_answers(key)

    def _session_made(self, plane: int, session: Session) -> None:
        if self.faults.timeouts:
            self._sessions.append((plane, session))
            self.pool.add((EXPIRE, len(self._sessions) - 1))

    def _expire(self, ident: int) -> None:
        plane, session = self._sessions[ident]
        self.switch.expire(plane, session)

    def _followed(self, packet: Packet) -> bool:
        if self.dump_token is None:
            return False
        if packet.op == Command.NOTIFY:
            return packet.token == self.dump_token
        instruction = self.decoder.all[packet.tag]
        return self.key[instruction.op] == self.dump_token and self.p.templates[self.p.ops.template[instruction.op]].fn in ("copy", "sum", "row")

    # ---- source ----------------------------------------------------------------------------------------------------------------

    def _issue(self, op: int) -> None:
        if not self.progress.try_issue(op):
            return
        if self.kind[op] not in PUSHES + PULLS:
            self.pool.add((DONE, op), self._time("done", op))
            return
        made = self.decoder.of_op(op)
        self.missing[op] = len(made)
        if not made:
            self.pool.add((DONE, op), self._time("done", op))
        for one in made:
            self._enter(one)

    def _queue_of(self, one: Instruction) -> int:
        return 0 if one.mode in (DYNAMIC, EXPLICIT) and one.remote else 1

    def _enter(self, one: Instruction) -> None:
        self._lsu(one, lsu.Enter(one.tag, self._targets(one)))

    def _targets(self, one: Instruction) -> int:
        """Contributions that complete the instruction: listed targets (dynamic), else members; and the local member."""
        far = len(one.targets) if one.mode == DYNAMIC else len(one.remote)
        near = 0 if one.local < 0 else max(1, len(self.decoder.rows(one.local))) if one.mode == DYNAMIC else 1
        return far + near

    def _lsu(self, one: Instruction, event: lsu.Event) -> None:
        states, which = list(self.queues[one.source]), self._queue_of(one)
        states[which], outputs = lsu.step(states[which], event)
        self.queues[one.source] = (states[0], states[1])
        if which == 0:
            table = self.statistics.tables["multimemq"]
            table["peak"] = max(table["peak"], len(states[0].queue))
        for out in outputs:
            if isinstance(out, lsu.Refused):
                self.statistics.tables["multimemq"]["refused"] += 1
                self.entering[one.source].append(one)
            elif isinstance(out, lsu.FetchList):
                self.pool.add((LIST, one.tag))
            elif isinstance(out, lsu.Send):
                self._send(one, out.attempt)
            elif isinstance(out, lsu.Done):
                self.missing[one.op] -= 1
                if self.missing[one.op] == 0:
                    self.pool.add((DONE, one.op), self._time("done", one.op))
            elif isinstance(out, lsu.Exhausted):
                raise EmulationMismatch(f"GPU {one.source} tag {one.tag}: found no attempt number left, expected fewer retries")

    def _list(self, tag: int) -> None:
        one = self.decoder.all[tag]
        state = self.collects[one.source]
        self.collects[one.source], _ = collect.step(state, collect.Open(tag, self._targets(one)))
        self._lsu(one, lsu.ListArrived(tag))
        if self._queue_of(one) == 0 and self.entering[one.source]:
            self._enter(self.entering[one.source].popleft())
        self._sent += 1
        if self.faults.duplicate_every and one.remote and self._sent % self.faults.duplicate_every == 0:
            self.pool.add((RETRY, tag))

    def _retry(self, tag: int) -> None:
        one = self.decoder.all[tag]
        outstanding = self.queues[one.source][self._queue_of(one)].outstanding
        self.statistics.injected["duplicate"] += tag in outstanding
        self._lsu(one, lsu.Retry(tag))

    def _send(self, one: Instruction, attempt: int) -> None:
        """The request leaves for its switch plane, unless all its targets are local."""
        if one.local >= 0:
            self.pool.add((LOCAL, attempt * MAX_TAGS + one.tag), self._time("done", one.op))
        if not one.remote:
            return
        token = max(self.key[one.op], 0)
        first = one.chunk * 128
        payload = b"" if one.pull else self._payload(one, token, first)
        wanted = self._chunk_bytes(one) if one.pull else 0
        op = {
            (DYNAMIC, False): Command.DYST,
            (DYNAMIC, True): Command.DYLD,
            (EXPLICIT, False): Command.EXPLICIT_ST,
            (EXPLICIT, True): Command.EXPLICIT_LD,
        }.get((one.mode, one.pull))
        address = one.address(token, first)
        fields: dict[str, Any] = {}
        if op in (Command.DYST, Command.DYLD):
            fields = {"targets": one.targets, "stage": Stage.COMBINE if one.pull else Stage.DISPATCH}
        elif op is not None:
            addresses = tuple((slot + 1 << 34) + address for slot in one.targets)
            address, fields = addresses[0], {"further": addresses[1:]}
        else:
            op = Command.MULTIMEM_LD if one.pull else Command.ST if self.kind[one.op] == Kind.PUT else Command.MULTIMEM_ST
        lane = one.tag % self.faults.lanes if self.faults.lanes > 1 else 0
        self.statistics.injected["reorder"] += lane > 0
        packet = Packet(
            op,
            virtual_channel(op, lane),
            one.source,
            one.tag,
            attempt,
            self.fmt.dtype(one.weights),
            address,
            wanted_bytes=wanted,
            payload=payload,
            **fields,
        )
        self.channels.send(True, one.source, one.plane, packet)

    def _chunk_bytes(self, one: Instruction) -> int:
        if one.weights:
            return 4 * self.t.routing.topk
        return min(128, int(self.p.ops.bytes[one.op]) - one.chunk * 128)

    def _columns(self, one: Instruction) -> slice:
        size = self.t.number.bytes
        return slice(one.chunk * 128 // size, one.chunk * 128 // size + self._chunk_bytes(one) // size)

    def _payload(self, one: Instruction, token: int, first: int) -> bytes:
        """What a store brings: a piece of a token, its gate weights, a sum, gate gradients, or a control word."""
        fn = self.p.templates[self.p.ops.template[one.op]].fn
        if fn == "control":
            return bytes(self._chunk_bytes(one))
        if fn == "copy":
            if one.weights:
                return self._weights(one, token)
            if self.key[one.op] < 0 or token // self.t.routing.tokens_per_gpu != one.source:
                raise EmulationMismatch(f"op {one.op}: found token {self.key[one.op]} read on GPU {one.source}, expected one of its own")
            row: bytes = self.t.tokens[token].tobytes()
            return row[first : first + self._chunk_bytes(one)]
        return self._pushed_sum(one)[0]

    def _weights(self, one: Instruction, token: int) -> bytes:
        """Gate weights in the order of the target list (dynamic), else in the order of the router's columns."""
        weights = self.t.weight[token]
        if one.mode == DYNAMIC:
            columns = [self.column_of[token, slot] for slot in one.targets]
            weights = np.concatenate((weights[columns], np.zeros(len(weights) - len(columns), weights.dtype)))
        return self.fmt.write(weights, weights=True)

    def _pushed_sum(self, one: Instruction) -> tuple[bytes, tuple[Expression, ...]]:
        """One GPU's rounded sum of a token's expert rows (fn "row": one of them), or its gate gradients by column."""
        gpu, token = one.source, self.key[one.op]
        places = self._pushed_places(one, token)
        if one.weights:
            at = [self._column(gpu, token, e) for e, _ in places]
            value = self.hubs[gpu].gate_grads(places, at, self.t.routing.topk, self.fmt)
            return self.fmt.write(value.array, weights=True), ()
        value = self.hubs[gpu].add_up(self._results, places, self._columns(one), self.t.number)
        return self.fmt.write(value.array), value.parts

    @property
    def _results(self) -> Array:
        return self.memory.rows("dx" if self.backward else "y")

    def _column(self, gpu: int, token: int, expert: int) -> int:
        return self.column_of[token, self.layout.slot_of_region[self.hubs[gpu].regions[expert]]]

    def _places(self, gpu: int, token: int) -> list[tuple[int, int]]:
        """(local expert, place) of all rows of a token on a GPU: what software there knows."""
        hub = self.hubs[gpu]
        rows = [(e, hub.row_of.get((e, token))) for e in range(len(hub.regions))]
        found = [(e, self.layout.place[row]) for e, row in rows if row is not None]
        if any(place == UNBOUND for _, place in found):
            raise EmulationMismatch(f"GPU {gpu}: found a read of token {token}, expected one after all its rows were written")
        return found

    def _pushed_places(self, one: Instruction, token: int) -> list[tuple[int, int]]:
        """(local expert, place) of what a push adds up: all rows of its token on its GPU, or the one row that belongs into its partial row."""
        if self.p.templates[self.p.ops.template[one.op]].fn != "row":
            return self._places(one.source, token)
        (partial,) = self.decoder.rows(next(iter((*one.remote, one.local))))
        row, regions = self.layout.pushed(partial, token), self.hubs[one.source].regions
        if self.layout.region[row] not in regions or self.layout.place[row] == UNBOUND:
            raise EmulationMismatch(f"row {row}: found a push from GPU {one.source}, expected one from the GPU that holds it once bound")
        return [(regions.index(self.layout.region[row]), self.layout.place[row])]

    # ---- packets ---------------------------------------------------------------------------------------------------------------

    def _move(self, channel: int) -> None:
        wire, flight = self.channels.take(channel)
        local = self.t.routing.placement.slots_per_gpu
        packet = decode(flight.data, local_experts=local)
        if wire.up:
            self._at_switch(wire, packet, flight)
        elif packet.source == wire.gpu and packet.op not in (Command.NOTIFY, Command.ST, Command.MULTIMEM_ST):
            self._at_source(packet, flight)
        else:
            self._at_hub(wire, packet, flight)

    def _at_switch(self, wire: Wire, packet: Packet, flight: Flight) -> None:
        if packet.op == Command.NOTIFY:
            home = packet.token // self.t.routing.tokens_per_gpu
            self.channels.send(False, home, wire.plane, packet, flight.ghost)
            return
        one = self.decoder.all[packet.tag]
        members = [(self.decoder.node[m], max(1, len(self.decoder.rows(m)))) for m in one.remote]
        self.switch.handle(wire.plane, packet, flight.ghost, members, one)

    def _at_source(self, packet: Packet, flight: Flight) -> None:
        """A merged acknowledgement, a result, a partial sum, or a response that passed the switch by."""
        one = self.decoder.all[packet.tag]
        if packet.op in (Command.MERGED_ACK, Command.EXPLICIT_ACK):
            self._piece(one, packet.attempt, self._listed(one), Value(np.zeros(0), ()))
            return
        data = packet.payload
        session = (packet.source, packet.tag, packet.attempt)
        if packet.op == Command.PARTIAL:
            whole = self._chunk_bytes(one) // self.fmt.stored(one.weights).itemsize * 4
            data = self._halves.pop((one.plane, session), b"") + data
            if len(data) < whole:
                self._halves[one.plane, session] = data
                return
            array = self.fmt.read_sum(data)
        else:
            array = self.fmt.read(data, one.weights)
        count = self._listed(one) if packet.op == Command.EXPLICIT_RESULT else packet.count
        self._piece(one, packet.attempt, count, Value(array, flight.ghost))

    def _listed(self, one: Instruction) -> int:
        return len(one.targets) if one.mode == DYNAMIC else len(one.remote)

    def _piece(self, one: Instruction, attempt: int, count: int, value: Value) -> None:
        state = self.collects[one.source]
        self.collects[one.source], outputs = collect.step(state, collect.Piece(one.tag, attempt, count, value))
        for out in outputs:
            if isinstance(out, collect.Discarded):
                self.statistics.table("collect")["discarded"] += 1
            else:
                if one.pull:
                    self._write(one, out.value)
                self._lsu(one, lsu.Finish(one.tag))

    def _write(self, one: Instruction, value: Value) -> None:
        """A complete pull: the sum is rounded and stored at the source; gate gradients go to their columns."""
        token = self.key[one.op]
        if not one.weights:
            self._store_sum(token, one.chunk, self._columns(one), value)
            return
        assert self.gate_grad is not None
        if one.mode == DYNAMIC:
            for i, slot in enumerate(one.targets):
                self.gate_grad[token, self.column_of[token, slot]] = value.array[i]
        else:
            remote = {self.decoder.node[m] for m in one.remote}
            for gpu in remote:
                for e, _ in self._places(gpu, token):
                    column = self._column(gpu, token, e)
                    self.gate_grad[token, column] = value.array[column]

    def _store_sum(self, token: int, chunk: int, columns: slice, value: Value) -> None:
        self.out[token, columns] = self.t.number.store(value.array)
        self.expressions[token][chunk] = ("source", value.parts)

    # ---- destination -----------------------------------------------------------------------------------------------------------

    def _at_hub(self, wire: Wire, packet: Packet, flight: Flight) -> None:
        one, gpu = self.decoder.all[packet.tag] if packet.op != Command.NOTIFY else None, wire.gpu
        if one is None:
            self._notified(gpu, packet.token, packet.expert)
            return
        answer = Packet(
            Command.ACK, virtual_channel(Command.ACK, int(packet.channel) % 8), packet.source, packet.tag, packet.attempt, address=packet.address
        )
        if one.mode != DYNAMIC:
            answer = replace(answer, address=max(self.key[one.op], 0) * STRIDE)
        if not one.pull:
            self._store(one, gpu, packet, lambda count: self.channels.send(True, gpu, wire.plane, replace(answer, stage=packet.stage, count=count)))
            return
        response = replace(answer, op=Command.RESPONSE, dtype=self.fmt.dtype(one.weights), stage=Stage.COMBINE)

        def respond(value: Value, count: int) -> None:
            data = self.fmt.write(value.array, one.weights)
            self.channels.send(True, gpu, wire.plane, replace(response, count=count, payload=data), value.parts)

        if one.mode == DYNAMIC:
            token, first = packet.address // STRIDE, packet.address % STRIDE
            self.hubs[gpu].look_up(packet.targets, token, False, lambda places: respond(self._read(one, gpu, places, first), len(places)))
        else:
            places = self._places(gpu, self.key[one.op])
            respond(self._read(one, gpu, places, -1), 1)

    def _read(self, one: Instruction, gpu: int, places: list[tuple[int, int]], first: int) -> Value:
        hub, token = self.hubs[gpu], self.key[one.op]
        if one.weights:
            at = [first + i for i in range(len(places))] if first >= 0 else [self._column(gpu, token, e) for e, _ in places]
            return hub.gate_grads(places, at, self.t.routing.topk, self.fmt)
        return hub.add_up(self._results, places, self._columns(one), self.t.number)

    def _store(self, one: Instruction, gpu: int, packet: Packet | None, done: Callable[[int], None]) -> None:
        """A store at its destination. `packet` None: a local one. `done(targets)` when all copies are visible."""
        template = self.p.templates[self.p.ops.template[one.op]]
        if template.fn == "copy" and one.mode == DYNAMIC:
            token, data = self.key[one.op], None
            first = 0
            if packet is None:
                experts = self._local_experts(one)
            else:
                token, first, experts, data = packet.address // STRIDE, packet.address % STRIDE, packet.targets, packet.payload
            payload = data if data is not None else self._payload(one, token, one.chunk * 128)
            # The offset says which chunk it is; of gate weights, where this GPU's begin in the list.
            chunk = one.chunk if one.weights or packet is None else first // 128

            def write(places: list[tuple[int, int]]) -> None:
                for i, (e, place) in enumerate(places):
                    weight = self.fmt.read(payload, weights=True)[first + i] if one.weights and packet is not None else None
                    self._write_row(one, gpu, e, place, chunk, payload, weight, token)
                done(len(places))

            self.hubs[gpu].look_up(experts, token, True, write)
            return
        member = self.decoder.member_at(one, gpu)
        payload = packet.payload if packet is not None else self._payload(one, max(self.key[one.op], 0), one.chunk * 128)
        for row in self.decoder.rows(member):
            self._store_plain(one, gpu, row, payload, template.fn)
        done(1)

    def _local_experts(self, one: Instruction) -> tuple[int, ...]:
        regions = self.hubs[one.source].regions
        return tuple(sorted(regions.index(self.layout.region[row]) for row in self.decoder.rows(one.local)))

    def _write_row(self, one: Instruction, gpu: int, expert: int, place: int, chunk: int, payload: bytes, weight: Any, token: int) -> None:
        """A chunk, or a gate weight, becomes visible in a row of a local expert."""
        if one.weights:
            if weight is None:
                weight = self.t.weight[token, self._column(gpu, token, expert)]
            self.memory.weight[place] = weight
            self.hubs[gpu].visible(expert, place, one.chunk, 4)
            return
        size = self.t.number.bytes
        begin = chunk * 128 // size
        name = self.p.templates[self.p.ops.template[one.op]].dst.partition(".")[2]
        self.memory.rows(name)[place, begin : begin + len(payload) // size] = np.frombuffer(payload, self.t.number.stored)
        self.hubs[gpu].visible(expert, place, chunk, len(payload))

    def _store_plain(self, one: Instruction, gpu: int, row: int, payload: bytes, fn: str) -> None:
        """A store whose receiver's software knows the row."""
        region = self.layout.region[row]
        if region in self.layout.slot_of_region and fn == "copy":
            hub, token = self.hubs[gpu], self.layout.key[row]
            expert = hub.regions.index(region)
            place = hub.bind(expert, token)
            weight = None
            if one.weights:
                weight = self.fmt.read(payload, weights=True)[self._column(gpu, token, expert)]
            self._write_row(one, gpu, expert, place, one.chunk, payload, weight, token)
            return
        if fn in ("sum", "row"):
            self._store_partial(one, row, payload)
        if one.weights or (row, one.chunk) in self.row_seen:
            return
        self.row_seen.add((row, one.chunk))
        self.layout.bind(row)
        self.row_missing[row] -= self._chunk_bytes(one)
        if self.row_missing[row] == 0:
            tile = self.layout.tile_of(row)
            self.tile_missing[tile] -= 1
            if self.tile_missing[tile] == 0:
                self.progress.fire(Tail.TILE_READY, tile)

    def _store_partial(self, one: Instruction, row: int, payload: bytes) -> None:
        token = self.layout.key[row]
        if one.weights:
            assert self.gate_grad is not None
            values = self.fmt.read(payload, weights=True)
            for e, _ in self._pushed_places(one, token):
                column = self._column(one.source, token, e)
                self.gate_grad[token, column] = values[column]
            return
        slots = tuple(self.layout.slot_of_region[self.hubs[one.source].regions[e]] for e, _ in self._pushed_places(one, token))
        self.partial[row][one.chunk] = (self.fmt.read(payload), ("hub", one.source, slots))

    def _local(self, ident: int) -> None:
        """Targets on the source GPU are served in its hub; no packet leaves."""
        attempt, tag = divmod(ident, MAX_TAGS)
        one = self.decoder.all[tag]
        gpu = one.source
        if not one.pull:
            near = self._targets(one) - self._listed(one)
            if self.p.templates[self.p.ops.template[one.op]].fn == "copy" and self.key[one.op] < 0:
                self._copy_free(one)
                self._piece(one, attempt, near, Value(np.zeros(0), ()))
                return
            self._store(one, gpu, None, lambda _: self._piece(one, attempt, near, Value(np.zeros(0), ())))
            return
        token = self.key[one.op]

        def collected(places: list[tuple[int, int]]) -> None:
            count = self._targets(one) - self._listed(one)
            if one.weights:
                assert self.gate_grad is not None
                for e, place in places:
                    self.gate_grad[token, self._column(gpu, token, e)] = self.memory.gate_grad[place]
                self._piece(one, attempt, count, Value(np.zeros(self.t.routing.topk, self.t.number.work), ()))
            else:
                self._piece(one, attempt, count, self.hubs[gpu].add_up(self._results, places, self._columns(one), self.t.number))

        if one.mode == DYNAMIC:
            self.hubs[gpu].look_up(self._local_experts(one), token, False, collected)
        else:
            collected(self._places(gpu, token))

    def _copy_free(self, one: Instruction) -> None:
        """Free communication: every row is there at once (`ideal`); done with the op's first packet."""
        if one.chunk:
            return
        op_bytes = int(self.p.ops.bytes[one.op])
        name = self.p.templates[self.p.ops.template[one.op]].dst.partition(".")[2]
        for row in self.decoder.rows(one.local):
            hub, token = self.hubs[one.source], self.layout.key[row]
            expert = hub.regions.index(self.layout.region[row])
            place = hub.bind(expert, token)
            self.memory.rows(name)[place] = self.t.tokens[token]
            if not self.backward:
                self.memory.weight[place] = self.t.weight[token, self.layout.column[row]]
            hub.visible(expert, place, 0, op_bytes)

    # ---- compute and readiness ---------------------------------------------------------------------------------------------------

    def _done(self, op: int) -> None:
        template = self.p.templates[self.p.ops.template[op]]
        if self.kind[op] == Kind.COMPUTE:
            tile, gpu = self.key[op], self.node[op]
            self.memory.compute(template.fn, tile, gpu)
            if template.fn in ("gemm1", "gemm2_dgrad"):
                self.hubs[gpu].computed(tile, last=False)
            elif template.fn in ("gemm2", "gemm1_dgrad"):
                self.hubs[gpu].computed(tile, last=True)
        elif self.kind[op] == Kind.JOIN and template.fn == "sum":
            self._sum_for_free(self.node[op])
        self.progress.finish(op)

    def tile_notifies(self, tile: int) -> None:
        """The tracker's notices of a tile go to the tokens' sources, each as a packet unless it stays on the GPU."""
        region, _, _ = self.layout.tile(tile)
        gpu, told = self.layout.node[region], self.p.regions.row_notify
        for row in self.hubs[gpu].notices.pop(tile, ()):
            op = int(told[row])
            if op < 0:
                continue
            token, slot = self.layout.key[row], self.layout.slot_of_region[region]
            if self.node[op] == gpu:
                self._notified(gpu, token, slot, op)
            else:
                tag = MAX_TAGS - 1
                packet = Packet(Command.NOTIFY, virtual_channel(Command.NOTIFY), gpu, tag, token=token, expert=slot)
                self.channels.send(True, gpu, token % self.decoder.planes, packet)

    def _notified(self, gpu: int, token: int, slot: int, op: int = -1) -> None:
        """OR table: an op may go when all its notices have come."""
        if op < 0:
            local = self.hubs[slot // self.t.routing.placement.slots_per_gpu]
            row = local.row_of[slot % self.t.routing.placement.slots_per_gpu, token]
            op = int(self.p.regions.row_notify[row])
        self.ors[gpu], outputs = readiness.step(self.ors[gpu], (self._or_index[op], slot))
        table = self.statistics.tables["or"]
        for out in outputs:
            if isinstance(out, readiness.Spilled):
                table["spills"] += 1
            else:
                table["ready"] += 1
                ready = self._or_ops[gpu][out.token]
                self.progress.told(ready, self._expected[ready])

    # ---- ends --------------------------------------------------------------------------------------------------------------------

    def _copy_out(self) -> None:
        """What pushed Combines leave at the source: partial rows of every token (per GPU or per expert), added in the order of the rows."""
        by_token: dict[int, list[int]] = defaultdict(list)
        for region in self.layout.partial:
            for row in range(*self.layout.row_ptr[region : region + 2]):
                by_token[self.layout.key[row]].append(row)
        for token, rows in by_token.items():
            if any(self.row_missing[row] for row in rows):
                continue
            for chunk in self.partial[rows[0]]:
                total = Value(*_as_value(self.partial[rows[0]][chunk]))
                for row in rows[1:]:
                    total = total + Value(*_as_value(self.partial[row][chunk]))
                begin = chunk * self.record.chunk
                self._store_sum(token, chunk, slice(begin, begin + len(total.array)), total)

    def _sum_for_free(self, node: int) -> None:
        """Combine of a system whose communication is free."""
        r, hidden = self.t.routing, self.t.experts.hidden
        for token in range(node * r.tokens_per_gpu, (node + 1) * r.tokens_per_gpu):
            groups = [(gpu, self._places(gpu, token)) for gpu in range(self.p.n_nodes)]
            for chunk in range(-(-hidden // self.record.chunk)):
                columns = slice(chunk * self.record.chunk, min((chunk + 1) * self.record.chunk, hidden))
                parts = [self.hubs[gpu].add_up(self._results, places, columns, self.t.number) for gpu, places in groups if places]
                if parts:
                    total = parts[0]
                    for part in parts[1:]:
                        total = total + part
                    self._store_sum(token, chunk, columns, total)
            if self.gate_grad is not None:
                for gpu, places in groups:
                    for e, place in places:
                        self.gate_grad[token, self._column(gpu, token, e)] = self.memory.gate_grad[place]


def _as_value(part: tuple[Array, Expression]) -> tuple[Array, tuple[Expression, ...]]:
    return part[0], (part[1],)
