"""From ops of a Program to instructions, one per packet of payload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dysharp.errors import ConfigError
from dysharp.functional.layer import Layout
from dysharp.isa.framing import Framing
from dysharp.program import Kind, Program
from dysharp.program.builder import PULLS

MAX_TAGS = 1 << 20  # the tag field of a packet
STRIDE = 1 << 15  # bytes of one block in multimem space: a power of two above the largest row (16 KiB)
DYNAMIC, EXPLICIT, PLAIN = "dynamic", "explicit", "plain"
MAX_WEIGHTS = 32  # gate weights in one packet of 128 B


@dataclass(frozen=True, slots=True)
class Instruction:
    """One packet's worth of an op. `tag` names it; `members` are the op's; `local` is the one on the source GPU (-1 = none).

    `targets`: expert slots listed in the request, ascending; `counts`: contributions by member (pulls).
    """

    tag: int
    op: int
    source: int
    chunk: int
    weights: bool
    mode: str
    pull: bool
    plane: int
    remote: tuple[int, ...]
    local: int
    targets: tuple[int, ...]

    def address(self, token: int, first_byte: int) -> int:
        """Multimem address of the chunk (of gate weights: of the block)."""
        return token * STRIDE + (0 if self.weights else first_byte)


def mode_of(framing: Framing) -> str:
    """Which instructions a framing stands for."""
    if framing.targets_per_ext:
        return DYNAMIC
    return EXPLICIT if framing.address_per_target else PLAIN


class Decoder:
    """The instructions of every op, made when the op issues."""

    def __init__(self, program: Program, layout: Layout, planes: int) -> None:
        self.p, self.layout, self.planes = program, layout, planes
        self.ptr, self.node = program.members.ptr.tolist(), program.members.node.tolist()
        self.fill_ptr, self.fill_row = program.members.fill_ptr.tolist(), program.members.fill_row.tolist()
        self.all: list[Instruction] = []

    def rows(self, member: int) -> list[int]:
        """Rows a member fills or reads."""
        rows: list[int] = self.fill_row[self.fill_ptr[member] : self.fill_ptr[member + 1]]
        return rows

    def of_op(self, op: int) -> list[Instruction]:
        """New instructions for `op`: its data packets, then that of its gate weights or gate gradients."""
        p = self.p
        template = p.templates[p.ops.template[op]]
        framing = p.framings[template.framing]
        source, key = int(p.ops.node[op]), int(p.ops.key[op])
        members = range(self.ptr[op], self.ptr[op + 1])
        remote = tuple(m for m in members if self.node[m] != source)
        local = next((m for m in members if self.node[m] == source), -1)
        mode, pull = mode_of(framing), template.kind in PULLS
        targets = self._targets(remote) if mode != PLAIN else ()
        n_data = framing.packets(int(p.ops.bytes[op]))
        n_aux = framing.packets(int(p.wires.aux[p.ops.wire[op]]))
        if n_aux > 1:
            raise ConfigError(f"packet path: found gate weights of {n_aux} packets, expected top-{MAX_WEIGHTS} at most (path row has no limit)")
        made = []
        for chunk in range(n_data + n_aux):
            tag = len(self.all)
            if tag >= MAX_TAGS:
                raise ConfigError(f"packet path: found more than {MAX_TAGS} instructions, expected fewer (path row has no limit)")
            plane = (max(key, 0) + chunk) % self.planes
            one = Instruction(tag, op, source, chunk, chunk >= n_data, mode, pull, plane, remote, local, targets)
            self.all.append(one)
            made.append(one)
        return made

    def _targets(self, members: tuple[int, ...]) -> tuple[int, ...]:
        layout = self.layout
        return tuple(sorted(layout.slot_of_region[layout.region[row]] for m in members for row in self.rows(m)))

    def member_at(self, instruction: Instruction, gpu: int) -> int:
        """The member of an instruction's op on `gpu`: what software at the receiver knows of plain stores and loads."""
        op = instruction.op
        return next(m for m in range(self.ptr[op], self.ptr[op + 1]) if self.node[m] == gpu)


def check_program(p: Program) -> None:
    """Refuse what packets do not carry yet."""
    kinds = {t.kind for t in p.templates} - {Kind.COMPUTE, Kind.DELAY, Kind.JOIN, Kind.PUT, Kind.MULTICAST, Kind.PULL_REDUCE}
    if kinds:
        names = ", ".join(sorted(Kind(k).name for k in kinds))
        raise ConfigError(f"packet path: found ops of kind {names}, expected COMPUTE, DELAY, JOIN, PUT, MULTICAST or PULL_REDUCE (use path row)")
    if np.isin(p.edges.tail_kind, (2, 4)).any() or (p.edges.head_kind == 1).any():
        raise ConfigError("packet path: found edges of members or rows, expected edges of ops and tiles only (use path row)")
