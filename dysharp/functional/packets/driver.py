"""The packet path: a Program drives the network. Ops become transactions; tables and packets report events."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dysharp.base.errors import ConfigError
from dysharp.functional.faults import Faults
from dysharp.functional.layer import ExpertMemory, Layout, RunRecord, Tensors
from dysharp.functional.network.core import MEMORY, N_KINDS, Network
from dysharp.functional.network.hub_tables import HubTables, Place
from dysharp.functional.network.lsu import LoadStoreUnits
from dysharp.functional.network.messages import Value, WireFormat
from dysharp.functional.network.statistics import Statistics
from dysharp.functional.network.transaction import MAX_TAGS, PACKET_BYTES
from dysharp.functional.network.wires import LOCAL, MOVE
from dysharp.functional.op_events import OpEvents
from dysharp.functional.orders import Pool, make_pool
from dysharp.functional.packets.hub import Hub
from dysharp.functional.packets.instructions import STRIDE, Decoder, Instruction, check_program
from dysharp.functional.packets.output import Output
from dysharp.functional.rows import Outcome
from dysharp.isa.commands import FLIT_BYTES, Command, Dtype
from dysharp.isa.packets import Packet
from dysharp.program import Kind, Program, Tail, Trace
from dysharp.program.builder import PULLS, PUSHES
from dysharp.program.constants import sessions_of_table
from dysharp.protocol import readiness
from dysharp.specs import Cluster, load_cluster

FIRST_GEMMS, LAST_GEMMS = ("gemm1", "gemm2_dgrad"), ("gemm2", "gemm1_dgrad")


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

    `dump_token`: list the packets of this token in `Statistics.dump`. Raises EmulationMismatch when no event is
    possible and ops are left, ConfigError for parts of a Program that packets do not carry.
    """
    check_program(program, tensors)
    sizes = load_cluster(cluster)
    if sizes.flit_bytes != FLIT_BYTES:
        raise ConfigError(f"packet path: found flit_bytes {sizes.flit_bytes}, expected {FLIT_BYTES}, the flits of isa/ (path row has no flits)")
    faults = faults or Faults()
    run = _PacketDriver(program, tensors, _pool(order, seed, trace, faults), trace, faults, sizes, dump_token)
    return run.run(progress), run.statistics


def _pool(order: str, seed: int, trace: Trace | None, faults: Faults) -> Pool:
    """The pool of an order. With late memory, misses are answered last."""
    order = "late-delivery" if faults.late_memory and order == "random" else order
    return make_pool(order, seed, trace, frozenset({MEMORY} if faults.late_memory else {MOVE, LOCAL}), frozenset({_PacketDriver.ends}))


class _PacketStores:
    """Writes the memory of the GPUs. `arrived(row, n_bytes)`: bytes of a row of a tile without a tracker are there."""

    def __init__(
        self, program: Program, memory: ExpertMemory, decoder: Decoder, hubs: Sequence[Hub], output: Output, arrived: Callable[[int, int], None]
    ) -> None:
        self._t, self._layout = memory.t, memory.layout
        self._decoder, self._hubs, self._output, self._arrived = decoder, hubs, output, arrived
        self._fmt, self._op_bytes = WireFormat(memory.t.number), program.ops.bytes
        self._seen: set[tuple[int, int]] = set()  # (row, chunk)

    def store(self, one: Instruction, gpu: int, places: list[Place] | None, packet: Packet | None) -> None:
        """Write a copy on `gpu`: at `places`, or in the rows of the op's member on `gpu`.

        `packet` None: the copy of the source GPU itself.
        """
        if one.template.fn == "copy" and one.token < 0 and packet is None:
            self._copy_free(one)
            return
        hub = self._hubs[gpu]
        if places is not None and one.weights:
            self._weights(one, hub, places, packet)
            return
        payload = self._hubs[one.source].payload(one) if packet is None else packet.payload
        if places is None:
            member = next(m for m in one.members if self._decoder.node[m] == gpu)  # software at the receiver knows it
            for row in self._decoder.rows(member):
                self._plain(one, hub, row, payload)
        else:
            for place in places:
                hub.write(_buffer(one), place, one.chunk, payload)

    def _weights(self, one: Instruction, hub: Hub, places: list[Place], packet: Packet | None) -> None:
        """Write gate weights of a dynamic request.

        Low address bits of the copy hold the list position of its first target.
        """
        if packet is None:
            weights = self._t.weight[one.token, hub.columns(one.token, places)]
        else:
            weights = self._fmt.read(packet.payload, one.dtype)[packet.address % STRIDE :]
        for place, weight in zip(places, weights, strict=False):
            hub.write_weight(place, one.chunk, weight)

    def _plain(self, one: Instruction, hub: Hub, row: int, payload: bytes) -> None:
        """Write a store into `row`, which software at the receiver knows."""
        token, region = self._layout.key[row], self._layout.region[row]
        if one.template.fn == "copy" and region in self._layout.slot_of_region:
            expert = hub.regions.index(region)
            place = (expert, hub.bind(expert, token))
            if one.weights:
                hub.write_weight(place, one.chunk, self._fmt.read(payload, one.dtype)[self._layout.column[row]])
            else:
                hub.write(_buffer(one), place, one.chunk, payload)
            return
        if one.template.fn in ("sum", "row"):
            places = self._hubs[one.source].pushed(one, token)
            self._output.pushed(one, token, row, places, self._fmt.read(payload, one.dtype))
        if not one.weights and (row, one.chunk) not in self._seen:
            self._seen.add((row, one.chunk))
            self._layout.bind(row)
            self._arrived(row, one.n_bytes)

    def _copy_free(self, one: Instruction) -> None:
        """Free communication (`ideal`): write all rows with the op's first packet."""
        hub, layout = self._hubs[one.source], self._layout
        for row in self._decoder.rows(one.local) if one.chunk == 0 else ():
            token, expert = layout.key[row], hub.regions.index(layout.region[row])
            place = hub.bind(expert, token)
            hub.memory.rows(_buffer(one))[place] = self._t.tokens[token]
            if self._t.saved is None:
                hub.memory.weight[place] = self._t.weight[token, layout.column[row]]
            hub.visible((expert, place), 0, int(self._op_bytes[one.op]))


def _buffer(one: Instruction) -> str:
    """The buffer of the expert slots that a copy writes: the name after "expert." in its template."""
    return one.template.dst.partition(".")[2]


class _PacketDriver(OpEvents):
    """`missing`: instructions of an op that are not done."""

    issues, ends = N_KINDS, N_KINDS + 1  # numbered after the network's events

    def __init__(self, p: Program, t: Tensors, pool: Pool, trace: Trace | None, faults: Faults, cluster: Cluster, dump_token: int | None) -> None:
        super().__init__(p, pool, trace)
        self.t, self.faults, self.dump_token, self.layout = t, faults, dump_token, Layout(p, t.routing)
        self.memory = ExpertMemory(t, self.layout, RunRecord(chunk=PACKET_BYTES // t.number.bytes))
        self.decoder = Decoder(self, t, self.layout, cluster.links_per_gpu)
        self._slices_left = _slices_by_tile(p)
        self._make_network(cluster, pool)
        self.statistics = self.network.statistics
        row_bytes = t.experts.hidden * t.number.bytes + (4 if t.saved is None and _carries_weights(p) else 0)
        entries = (faults.tlb_entries or cluster.al_tlb_entries, faults.tracker_entries or cluster.ts_entries)
        tile_ready = partial(self.progress.fire, Tail.TILE_READY)
        self.hubs = [Hub(g, self.network, self.memory, self.decoder, entries, row_bytes, tile_ready) for g in range(p.n_nodes)]
        self.output = Output(self.memory, self.hubs)
        self.stores = _PacketStores(p, self.memory, self.decoder, self.hubs, self.output, self._arrived)
        self._make_readiness(faults.tracker_entries or cluster.or_entries)

    def tile_of(self, row: int) -> int:
        return self.layout.tile_of(row)

    def _make_network(self, c: Cluster, pool: Pool) -> None:
        self.network: Network[Instruction] = Network(
            self, pool, WireFormat(self.t.number), n_gpus=self.p.n_nodes, experts_per_gpu=self.t.routing.placement.slots_per_gpu,
            reduction_entries=self.faults.reduction_entries or sessions_of_table(c), faults=self.faults,
            follows=None if self.dump_token is None else self._follows,
        )  # fmt: skip
        self.lsus = LoadStoreUnits(self.network, c.multimemq_entries, self.faults.duplicate_every, self._send, lambda one: self._one_less(one.op))
        self.network.on(self.issues, self._issue)
        self.network.on(self.ends, self._done)

    def _make_readiness(self, entries: int) -> None:
        """OR tables: notifications that ops wait for, by GPU."""
        told = self.p.regions.row_notify
        self._expected = Counter(told[told >= 0].tolist())  # notifications by op
        self._or_ops: dict[int, list[int]] = defaultdict(list)  # by GPU, in the order of the OR table
        for op in self._expected:
            self._or_ops[self.node[op]].append(op)
        self._or_index = {op: i for ops in self._or_ops.values() for i, op in enumerate(ops)}
        self.ors = [readiness.empty(tuple(self._expected[op] for op in self._or_ops[gpu]), entries) for gpu in range(self.p.n_nodes)]
        self.statistics.table("or", entries=entries)

    def run(self, progress: Callable[[int, int], None] | None) -> Outcome:
        """Step until no event is possible. Raises EmulationMismatch (the watchdog) if ops are left then."""
        events = self.progress.run(self.network.pool, self.network.act, progress, self._waiting)
        self.output.add_partial_rows(self.row_missing)
        self.output.record_history()
        self._count_overflows()
        backward = self.t.saved is not None
        gate_grad = self.output.gate_grad if backward else None
        return Outcome(self.output.out, gate_grad, self.memory.record, None if backward else self.memory.saved(), events)

    def _waiting(self) -> Iterator[str]:
        """Table entries that still wait, for the watchdog."""
        for gpu, hub in enumerate(self.hubs):
            yield from hub.tables.waiting()
            yield from self.lsus.waiting(gpu)

    def _count_overflows(self) -> None:
        """Count the overflows of small tables."""
        tables, injected = self.statistics.tables, self.statistics.injected
        if self.faults.tlb_entries:
            injected["al-tlb"] += tables["al_tlb"]["misses"]
        if self.faults.tracker_entries:
            injected["tracker"] += tables["ts"]["spills"] + tables["or"]["spills"]

    def _follows(self, packet: Packet) -> bool:
        if packet.op == Command.NOTIFY:
            return packet.token == self.dump_token
        one = self.decoder.all[packet.tag]
        return one.token == self.dump_token and one.template.fn in ("copy", "sum", "row")

    # ---- possible events (progress.Listener) -------------------------------------------------------------------------

    def tile_notifies(self, tile: int) -> None:
        """The tracker's notices of a tile go to the tokens' sources, each as a packet unless it stays on the GPU."""
        region, _, _ = self.layout.tile(tile)
        gpu, slot = self.layout.node[region], self.layout.slot_of_region.get(region, -1)
        for row in self.hubs[gpu].notices.pop(tile, ()):
            op, token = int(self.p.regions.row_notify[row]), self.layout.key[row]
            if op >= 0 and self.node[op] == gpu:
                self._count_notice(op, slot)
            elif op >= 0:
                home = token // self.t.routing.tokens_per_gpu
                self.network.notify(gpu, home, token, slot, plane=token % self.decoder.planes, tag=MAX_TAGS - 1)

    # ---- ops ---------------------------------------------------------------------------------------------------------

    def _issue(self, op: int) -> None:
        if not self.progress.try_issue(op):
            return
        instructions = self.decoder.of_op(op) if self.kind[op] in PUSHES + PULLS else []
        self.missing[op] = len(instructions)
        if not instructions:
            self._finish_later(op)
        for one in instructions:
            self.lsus.enter(one)

    def _done(self, op: int) -> None:
        template, node = self._template(op), self.node[op]
        fn = template.fn
        if self.kind[op] == Kind.COMPUTE:
            self.memory.compute(fn, self.key[op], node, template.columns)
            if fn in FIRST_GEMMS or (fn in LAST_GEMMS and self._last_slice(self.key[op])):
                self.hubs[node].computed(self.key[op], last=fn in LAST_GEMMS)
        elif self.kind[op] == Kind.JOIN and fn == "sum":
            self.output.sum_for_free(node)
        super()._done(op)

    def _last_slice(self, tile: int) -> bool:
        """Count an op of the last GEMM of `tile`; whether all its slices of columns are computed."""
        self._slices_left[tile] -= 1
        return self._slices_left[tile] == 0

    def _send(self, one: Instruction, attempt: int) -> None:
        """Send an instruction: the own copy to the own hub, and the request to the switch unless all targets are local."""
        if one.local >= 0:
            self.network.local(one, attempt, lane=(one.tag, attempt))
        if one.far:
            lane = one.tag % self.faults.lanes
            self.statistics.injected["reorder"] += lane > 0
            self.network.request(one, b"" if one.pull else self.hubs[one.source].payload(one), attempt, lane)

    # ---- calls of the network (network.Driver) -----------------------------------------------------------------------

    def locate(self, gpu: int, address: int) -> tuple[HubTables, int]:
        return self.hubs[gpu].tables, address // STRIDE

    def store(self, t: Instruction, gpu: int, places: list[Place] | None, packet: Packet | None) -> None:
        self.stores.store(t, gpu, None if places is None else self.hubs[gpu].in_memory(places), packet)

    def load(self, t: Instruction, gpu: int, places: list[Place] | None, packet: Packet | None) -> Value:
        hub = self.hubs[gpu]
        rows = hub.places(t.token) if places is None else hub.in_memory(places)
        if packet is not None or not t.weights:
            return hub.load(t if packet else replace(t, answer=Dtype.NONE), rows, t.address if packet is None else packet.address)
        self.output.own_gate_grads(t.token, gpu, rows)
        return Value(np.zeros(t.elements, self.t.number.work), ())

    def complete(self, t: Instruction, value: Value) -> None:
        if t.pull:
            self.output.pulled(t, value)
        self.lsus.finish(t)

    def arrived(self, gpu: int, packet: Packet) -> None:
        token, expert = packet.token, packet.expert
        per_gpu = self.t.routing.placement.slots_per_gpu
        row = self.hubs[expert // per_gpu].row_of[expert % per_gpu, token]
        self._count_notice(int(self.p.regions.row_notify[row]), expert)

    def _count_notice(self, op: int, slot: int) -> None:
        """Count a notice in the OR table. An op may issue when all its notices have come."""
        gpu, table = self.node[op], self.statistics.tables["or"]
        self.ors[gpu], outputs = readiness.step(self.ors[gpu], (self._or_index[op], slot))
        for out in outputs:
            if isinstance(out, readiness.TokenSpilled):
                table["spills"] += 1
            else:
                table["ready"] += 1
                ready = self._or_ops[gpu][out.token]
                self.progress.told(ready, self._expected[ready])


def _slices_by_tile(p: Program) -> Counter[int]:
    """Ops of the GEMM that writes results, by tile: one, or one per range of columns."""
    last = np.array([t.kind is Kind.COMPUTE and t.fn in LAST_GEMMS for t in p.templates], bool)
    return Counter(p.ops.key[last[p.ops.template]].tolist())


def _carries_weights(p: Program) -> bool:
    """Whether gate weights ride behind the rows of Dispatch."""
    dispatch = [i for i, t in enumerate(p.templates) if t.operator == "dispatch" and t.fn == "copy"]
    ops = np.flatnonzero(np.isin(p.ops.template, dispatch))
    return bool((p.wires.aux[p.ops.wire[ops]] > 0).any())
