"""From ops of a Program to transactions, one per packet of payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dysharp.errors import ConfigError
from dysharp.functional.layer import Layout, Tensors
from dysharp.functional.network.transaction import MAX_TAGS, PACKET_BYTES, Transaction
from dysharp.functional.network.values import Format
from dysharp.isa.commands import Command, Dtype, Stage, virtual_channel
from dysharp.isa.framing import Framing
from dysharp.isa.packets import Packet
from dysharp.program import Kind, Program, Template, Trace
from dysharp.program.builder import PULLS

STRIDE = 1 << 15  # bytes of one block in multimem space: a power of two above the largest row (16 KiB)
DYNAMIC, EXPLICIT, PLAIN = "dynamic", "explicit", "plain"
MAX_WEIGHTS = 32  # gate weights in one packet of 128 B
COMMANDS = {
    (DYNAMIC, False): Command.DYST,
    (DYNAMIC, True): Command.DYLD,
    (EXPLICIT, False): Command.EXPLICIT_ST,
    (EXPLICIT, True): Command.EXPLICIT_LD,
    (PLAIN, False): Command.MULTIMEM_ST,
    (PLAIN, True): Command.MULTIMEM_LD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction(Transaction):
    """One packet's worth of an op. `token`: the op's key, -1 = none.

    `chunk`: number of the packet; `weights`: it carries gate weights or gate gradients; `n_bytes`: payload of one copy; `targets`: expert
    slots listed in the request, ascending; `members`: the op's members on other GPUs; `local`: the one on the source GPU, -1 = none.
    """

    op: int
    template: Template
    token: int
    chunk: int
    weights: bool
    n_bytes: int
    dtype: Dtype
    mode: str
    targets: tuple[int, ...]
    members: tuple[int, ...]
    local: int

    @property
    def first_byte(self) -> int:
        """Where the packet begins in the row; gate weights follow the row."""
        return self.chunk * PACKET_BYTES

    @property
    def columns(self) -> slice:
        """Elements of the row that the packet carries."""
        first = self.first_byte // self.dtype.item_bytes
        return slice(first, first + self.n_bytes // self.dtype.item_bytes)

    def request(self, attempt: int, lane: int, payload: bytes) -> Packet:
        """The packet that leaves for the switch."""
        op = Command.ST if self.template.kind == Kind.PUT and self.mode == PLAIN else COMMANDS[self.mode, self.pull]
        address, further, stage = self.address, (), Stage.DISPATCH
        if self.mode == DYNAMIC:
            stage = Stage.COMBINE if self.pull else Stage.DISPATCH
        elif self.mode == EXPLICIT:
            address, *rest = ((slot + 1 << 34) + self.address for slot in self.targets)
            further = tuple(rest)
        return Packet(
            op,
            virtual_channel(op, lane),
            self.source,
            self.tag,
            attempt,
            self.dtype,
            address,
            stage,
            self.targets if self.mode == DYNAMIC else (),
            further=further,
            wanted_bytes=self.n_bytes if self.pull else 0,
            payload=payload,
        )


def mode_of(framing: Framing) -> str:
    """Which instructions a framing stands for."""
    if framing.targets_per_ext:
        return DYNAMIC
    return EXPLICIT if framing.address_per_target else PLAIN


class Decoder:
    """The instructions of every op, made when the op issues. `all`: by tag."""

    def __init__(self, program: Program, tensors: Tensors, layout: Layout, planes: int, trace: Trace | None) -> None:
        self.p, self.layout, self.planes = program, layout, planes
        self.ptr, self.node = program.members.ptr.tolist(), program.members.node.tolist()
        self.fill_ptr, self.fill_row = program.members.fill_ptr.tolist(), program.members.fill_row.tolist()
        self.all: list[Instruction] = []
        self._fmt, self._topk, self._slots_per_gpu = Format(tensors.number), tensors.routing.topk, tensors.routing.placement.slots_per_gpu
        self._done = None if trace is None else trace.done

    def rows(self, member: int) -> list[int]:
        """Rows a member fills or reads."""
        rows: list[int] = self.fill_row[self.fill_ptr[member] : self.fill_ptr[member + 1]]
        return rows

    def of_op(self, op: int) -> list[Instruction]:
        """New instructions for `op`: its data packets, then that of its gate weights or gate gradients."""
        p = self.p
        template, n_bytes = p.templates[p.ops.template[op]], int(p.ops.bytes[op])
        framing = p.framings[template.framing]
        n_data, n_aux = framing.packets(n_bytes), framing.packets(int(p.wires.aux[p.ops.wire[op]]))
        if n_aux > 1:
            raise ConfigError(f"packet path: found gate weights of {n_aux} packets, expected top-{MAX_WEIGHTS} at most (path row has no limit)")
        if len(self.all) + n_data + n_aux > MAX_TAGS:
            raise ConfigError(f"packet path: found more than {MAX_TAGS} instructions, expected fewer (path row has no limit)")
        shared = self._shared(op, template, framing)
        made = [self._instruction(shared, chunk, n_bytes if chunk < n_data else -1) for chunk in range(n_data + n_aux)]
        self.all += made
        return made

    def _shared(self, op: int, template: Template, framing: Framing) -> dict[str, Any]:
        """What all packets of an op have in common."""
        source, mode = int(self.p.ops.node[op]), mode_of(framing)
        members = range(self.ptr[op], self.ptr[op + 1])
        remote = tuple(m for m in members if self.node[m] != source)
        local = next((m for m in members if self.node[m] == source), -1)
        dynamic = mode == DYNAMIC
        near = tuple(slot - source * self._slots_per_gpu for slot in self._slots(op, (local,))) if dynamic and local >= 0 else ()
        targets = self._slots(op, remote) if mode != PLAIN else ()
        return {
            "op": op,
            "template": template,
            "token": int(self.p.ops.key[op]),
            "source": source,
            "mode": mode,
            "dynamic": dynamic,
            "pull": template.kind in PULLS,
            "listed": mode != PLAIN and bool(remote),
            "members": remote,
            "local": local,
            "far": tuple(self.node[m] for m in remote),
            "near": near,
            "targets": targets,
            "n_far": len(targets) if dynamic else len(remote),
            "n_near": 0 if local < 0 else len(near) if dynamic else 1,
            "due": 0 if self._done is None else int(self._done[op]),
        }

    def _instruction(self, shared: dict[str, Any], chunk: int, row_bytes: int) -> Instruction:
        """Packet `chunk` of an op. `row_bytes`: bytes of its row, -1 = the packet carries gate weights or gradients."""
        weights, block = row_bytes < 0, max(shared["token"], 0) * STRIDE
        dtype = self._fmt.weight if weights else self._fmt.payload
        first = chunk * PACKET_BYTES
        n_bytes = dtype.item_bytes * self._topk if weights else min(PACKET_BYTES, row_bytes - first)
        return Instruction(
            tag=len(self.all) + chunk,
            plane=(max(shared["token"], 0) + chunk) % self.planes,
            block=block,
            address=block if weights else block + first,
            elements=n_bytes // dtype.item_bytes if shared["pull"] else 0,
            indexed=weights,
            chunk=chunk,
            weights=weights,
            n_bytes=n_bytes,
            dtype=dtype,
            **shared,
        )

    def _slots(self, op: int, members: tuple[int, ...]) -> tuple[int, ...]:
        """Expert slots of the rows of `members`, ascending. Raises ConfigError for a row of another region."""
        rows = [row for m in members for row in self.rows(m)]
        slots = [self.layout.slot_of_region.get(self.layout.region[row], -1) for row in rows]
        if -1 in slots:
            name = self.p.templates[self.p.ops.template[op]].name
            row = rows[slots.index(-1)]
            raise ConfigError(f'packet path: op {op} ({name}): found row {row} in its target list, expected rows of regions "expert"')
        return tuple(sorted(slots))

    def member_at(self, instruction: Instruction, gpu: int) -> int:
        """The member of an instruction's op on `gpu`: what software at the receiver knows of plain stores and loads."""
        op = instruction.op
        return next(m for m in range(self.ptr[op], self.ptr[op + 1]) if self.node[m] == gpu)


def check_program(p: Program, t: Tensors) -> None:
    """Refuse what packets do not carry. Raises ConfigError."""
    kinds = {template.kind for template in p.templates} - {Kind.COMPUTE, Kind.DELAY, Kind.JOIN, Kind.PUT, Kind.MULTICAST, Kind.PULL_REDUCE}
    if kinds:
        names = ", ".join(sorted(Kind(k).name for k in kinds))
        raise ConfigError(f"packet path: found ops of kind {names}, expected COMPUTE, DELAY, JOIN, PUT, MULTICAST or PULL_REDUCE (use path row)")
    if np.isin(p.edges.tail_kind, (2, 4)).any() or (p.edges.head_kind == 1).any():
        raise ConfigError("packet path: found edges of members or rows, expected edges of ops and tiles only (use path row)")
    _check_riding(p, t)


def _check_riding(p: Program, t: Tensors) -> None:
    """What rides along can only be gate weights (forward Dispatch) or gate gradients (backward Combine)."""
    moves = np.flatnonzero(p.ops.wire >= 0)
    _, first = np.unique(np.stack((p.ops.template[moves], p.ops.wire[moves])), axis=1, return_index=True)
    for op in moves[np.sort(first)].tolist():
        template, aux_bytes = p.templates[p.ops.template[op]], int(p.wires.aux[p.ops.wire[op]])
        rides = template.fn == "copy" if t.saved is None else template.fn in ("sum", "row")
        size = 16 * -(-4 * t.routing.topk // 16) if rides else 0
        if aux_bytes not in (0, size):
            what = "gate weights" if t.saved is None else "gate gradients"
            expected = f"{size} B ({what} of top-{t.routing.topk}) or none" if rides else "none"
            where = f"op {op} ({template.name})"
            raise ConfigError(f"packet path: {where}: found {aux_bytes} B riding along, expected {expected} (path row has no limit)")
