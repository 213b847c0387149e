"""Turns ops of a Program into transactions, one per packet of payload."""

import numpy as np

from dysharp.base.errors import ConfigError
from dysharp.base.values import frozen_keywords
from dysharp.functional.layer import Layout, Tensors
from dysharp.functional.network.messages import WireFormat
from dysharp.functional.network.transaction import MAX_TAGS, PACKET_BYTES, Transaction
from dysharp.functional.op_events import OpEvents
from dysharp.functional.orders import time_in
from dysharp.isa.commands import Command, Dtype, Stage
from dysharp.isa.framing import Framing
from dysharp.program import Kind, Program, Template
from dysharp.program.builder import PULLS

STRIDE = 1 << 15  # bytes of one block in multimem space: a power of two above the largest row (16 KiB)
EXPLICIT_SPACE = 1 << 34  # bytes of address space of one expert slot, for explicit addressing
MAX_WEIGHTS = 32  # gate weights in one packet of 128 B


@frozen_keywords
class Instruction(Transaction):
    """The share of one packet in an op. `token`: the op's key, -1 = none. `chunk`: number of the packet in the op.

    `members`: the op's members. `local`: the member on the source GPU, -1 = none.
    """

    op: int
    template: Template
    token: int
    chunk: int
    members: range
    local: int

    @property
    def columns(self) -> slice:
        """Elements of the row that the packet carries."""
        first = self.chunk * PACKET_BYTES // self.dtype.item_bytes
        return slice(first, first + self.elements)


def _command_of(framing: Framing, kind: Kind) -> Command:
    """The command of an op's request: listed if the framing has target lists, explicit if it repeats addresses."""
    if framing.targets_per_ext:
        return Command.DYLD if kind in PULLS else Command.DYST
    if framing.address_per_target:
        return Command.EXPLICIT_LD if kind in PULLS else Command.EXPLICIT_ST
    if kind in PULLS:
        return Command.MULTIMEM_LD
    return Command.ST if kind == Kind.PUT else Command.MULTIMEM_ST


class Decoder:
    """Makes the instructions of an op when the op issues. `all`: all instructions, by tag."""

    def __init__(self, ops: OpEvents, tensors: Tensors, layout: Layout, planes: int) -> None:
        self.p, self.ops, self.layout, self.planes = ops.p, ops, layout, planes
        self.node, self.rows = ops.member_node, ops.fills
        self.all: list[Instruction] = []
        self._fmt, self._topk, self._slots_per_gpu = WireFormat(tensors.number), tensors.routing.topk, tensors.routing.placement.slots_per_gpu

    def of_op(self, op: int) -> list[Instruction]:
        """New instructions for `op`: data packets, then the packet of gate weights or gate gradients."""
        p = self.p
        framing, n_bytes = p.framings[p.templates[p.ops.template[op]].framing], int(p.ops.bytes[op])
        n_data, n_aux = framing.packets(n_bytes), framing.packets(int(p.wires.aux[p.ops.wire[op]]))
        if n_aux > 1:
            raise ConfigError(f"packet path: found gate weights of {n_aux} packets, expected top-{MAX_WEIGHTS} at most (path row has no limit)")
        if len(self.all) + n_data + n_aux > MAX_TAGS:
            raise ConfigError(f"packet path: found more than {MAX_TAGS} instructions, expected fewer (path row has no limit)")
        sizes = [min(PACKET_BYTES, n_bytes - chunk * PACKET_BYTES) for chunk in range(n_data)] + [-1] * n_aux
        made = self._instructions(op, framing, sizes)
        self.all += made
        return made

    def _instructions(self, op: int, framing: Framing, sizes: list[int]) -> list[Instruction]:
        """One instruction per size in bytes; -1 = gate weights or gate gradients."""
        p, fmt = self.p, self._fmt
        template, source, token = p.templates[p.ops.template[op]], self.ops.node[op], self.ops.key[op]
        command = _command_of(framing, template.kind)
        dynamic = command in (Command.DYST, Command.DYLD)
        members = range(self.ops.ptr[op], self.ops.ptr[op + 1])
        remote = [m for m in members if self.node[m] != source]
        local = next((m for m in members if self.node[m] == source), -1)
        listed = self._slots(op, remote) if framing.targets_per_ext or framing.address_per_target else ()
        near = tuple(slot - source * self._slots_per_gpu for slot in self._slots(op, [local])) if dynamic and local >= 0 else ()
        made: list[Instruction] = []
        first = 0 if p.ops.offset is None else int(p.ops.offset[op]) // PACKET_BYTES
        # Integers have no format to convert into.
        answer, total = (Dtype[c.word.upper()] if c.word and not fmt.number.is_integer else Dtype.NONE for c in (framing.answer, framing.total))
        for chunk, size in enumerate(sizes, first):
            weights = size < 0
            block = max(token, 0) * STRIDE
            address = block if weights else block + chunk * PACKET_BYTES
            addresses = [address] if dynamic or not listed else [(slot + 1) * EXPLICIT_SPACE + address for slot in listed]
            one = Instruction(
                source=source, tag=len(self.all) + len(made), command=command, plane=(max(token, 0) + chunk) % self.planes,
                address=addresses[0], further=tuple(addresses[1:]), block=block, dtype=fmt.weight if weights else fmt.payload,
                n_bytes=4 * self._topk if weights else size, stage=Stage.COMBINE if command == Command.DYLD else Stage.DISPATCH,
                targets=listed if dynamic else (), far=tuple(self.node[m] for m in remote), near=near,
                n_far=len(listed) if dynamic else len(remote), n_near=0 if local < 0 else len(near) if dynamic else 1, weights=weights,
                answer=Dtype.NONE if weights else answer, total=Dtype.NONE if weights else total,
                due=time_in(self.ops.trace, "done", op), op=op, template=template, token=token, chunk=chunk, members=members,
                local=local,
            )  # fmt: skip
            made.append(one)
        return made

    def _slots(self, op: int, members: list[int]) -> tuple[int, ...]:
        """Expert slots of the rows of `members`, ascending. Raises ConfigError for a row of another region."""
        rows = [row for m in members for row in self.rows(m)]
        slots = [self.layout.slot_of_region.get(self.layout.region[row], -1) for row in rows]
        if -1 in slots:
            name, row = self.p.templates[self.p.ops.template[op]].name, rows[slots.index(-1)]
            raise ConfigError(f'packet path: op {op} ({name}): found row {row} in its target list, expected rows of regions "expert"')
        return tuple(sorted(slots))


def check_program(p: Program, t: Tensors) -> None:
    """Raise ConfigError for parts of a Program that packets do not carry."""
    if p.sections:
        raise ConfigError("packet path: found a merge of Programs, expected one Program (merged.run_merged runs a merge row by row)")
    kinds = {template.kind for template in p.templates} - {Kind.COMPUTE, Kind.DELAY, Kind.JOIN, Kind.PUT, Kind.MULTICAST, Kind.PULL_REDUCE}
    if kinds:
        names = ", ".join(sorted(Kind(k).name for k in kinds))
        raise ConfigError(f"packet path: found ops of kind {names}, expected COMPUTE, DELAY, JOIN, PUT, MULTICAST or PULL_REDUCE (use path row)")
    if np.isin(p.edges.tail_kind, (2, 4)).any() or (p.edges.head_kind == 1).any():
        raise ConfigError("packet path: found edges of members or rows, expected edges of ops and tiles only (use path row)")
    if (p.wires.trains > 1).any():
        raise ConfigError("packet path: found ops of several trains, expected ops of one train (use path row)")
    _check_packet_size(p)
    _check_row_format(p, t)
    _check_riding(p, t)


def _check_packet_size(p: Program) -> None:
    """Packets carry 128 B; a row of more bytes is cut there."""
    for template in p.templates:
        size = p.framings[template.framing].payload_bytes
        if template.operator in ("dispatch", "combine") and template.kind in (Kind.PUT, Kind.MULTICAST, Kind.PULL_REDUCE) and size != PACKET_BYTES:
            raise ConfigError(f"packet path: found packets of {size} B in {template.name}, expected {PACKET_BYTES} B (use path row)")


def _check_row_format(p: Program, t: Tensors) -> None:
    """Packets carry rows in the format of the tensors, whatever the option `dispatch` of a system says."""
    size = t.experts.hidden * t.number.bytes
    for row_bytes in sorted({int(row_bytes) for name, row_bytes in zip(p.regions.name, p.regions.row_bytes, strict=True) if name == "expert"}):
        if row_bytes != size:
            raise ConfigError(
                f"packet path: found rows of {row_bytes} B in Dispatch, expected {size} B "
                f"({t.experts.hidden} values of {t.number.name}; use the option dispatch=rows, or path row)"
            )


def _check_riding(p: Program, t: Tensors) -> None:
    """Only gate weights (forward Dispatch) and gate gradients (backward Combine) may follow a row."""
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
            raise ConfigError(f"packet path: {where}: found {aux_bytes} B behind a row, expected {expected} (path row has no limit)")
