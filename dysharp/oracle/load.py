"""A Program as plain Python lists, so that the interpreter reads no array."""

from dysharp.base import I64, ByName, ProgramError, frozen
from dysharp.program import Hardware, Kind, Program, Template

PULLS = (Kind.GET, Kind.PULL_REDUCE, Kind.MERGED_LOAD)
ON_WIRES = ("up", "down", "response", "result", "ack_up", "ack_down", "stripe_up", "stripe_response")
"""Columns of `Wires` that an op has, too."""


@frozen
class Member:
    """One destination of an op. `rows`: region rows (global ids). `extra`: wire bytes of its copy beyond `Op.down`.

    `port`: the port of `node` in the network of the op.
    """

    op: int
    node: int
    port: int
    rows: list[int]
    extra: int


@frozen
class Op:
    """One op with the constants of its template. Times in ps, sizes in bytes, -1 = none.

    `has_next_train`: the next op carries more of the same row. `packets`: of one train, 1 outside NVLink.
    `trains`: of a bulk op more than 1; wire bytes are of one train.
    `port`: the port of `node` in the network `net`.
    """

    id: int
    kind: Kind
    name: str
    node: int
    payload: int
    key: int
    prio: int
    issuer: int
    chain: int
    session: int
    gate: int
    threshold: int
    value: int
    cls: int
    response_cls: int
    tasks: int
    duration: int
    task_bytes: int
    up: int
    down: int
    response: int
    result: int
    ack_up: int
    ack_down: int
    stripe_up: int
    stripe_response: int
    members: list[int]
    has_next_train: bool
    table: int
    net: int
    port: int
    packets: int = 1
    trains: int = 1

    def __str__(self) -> str:
        return f"op {self.id} ({self.kind.name} {self.name!r} on node {self.node})"


@frozen
class Tables:
    """The ops and members of a Program, and its hardware constants."""

    program: Program
    hardware: Hardware
    ops: list[Op]
    members: list[Member]


def load(program: Program) -> Tables:
    """The Program as lists. Raises ProgramError for a COMPUTE or DELAY without a duration, a task or a pool."""
    members = _members(program)
    ptr = program.members.ptr.tolist()
    ops = [_op(program, i, list(range(ptr[i], ptr[i + 1]))) for i in range(program.n_ops)]
    for op in ops:
        _check(program, op)
    return Tables(program, program.hardware, ops, members)


def _members(program: Program) -> list[Member]:
    m = program.members
    ptr, fill_ptr, fill_row = m.ptr.tolist(), m.fill_ptr.tolist(), m.fill_row.tolist()
    node = m.node.tolist()
    extra = [0] * len(node) if m.ext_bytes is None else m.ext_bytes.tolist()
    owner = [o for o in range(program.n_ops) for _ in range(ptr[o], ptr[o + 1])]
    nets = [program.templates[t].net for t in program.ops.template.tolist()]
    return [
        Member(owner[i], node[i], nets[owner[i]] * program.n_nodes + node[i], fill_row[fill_ptr[i] : fill_ptr[i + 1]], extra[i])
        for i in range(len(node))
    ]


def _op(program: Program, i: int, members: list[int]) -> Op:
    ops, wires = program.ops, program.wires
    template = program.templates[int(ops.template[i])]

    def optional(name: str, op: int = i) -> int:
        column = getattr(ops, name)
        return -1 if column is None or op >= program.n_ops else int(column[op])

    def wire(name: str) -> int:
        row = int(ops.wire[i])
        return 0 if row < 0 else int(getattr(wires, name)[row])

    payload, rows = int(ops.bytes[i]), int(ops.rows[i])
    named: ByName = {name: getattr(template, name) for name in ("name", "cls", "response_cls", "tasks", "table", "net")}
    named |= {name: int(getattr(ops, name)[i]) for name in ("node", "key", "prio", "issuer")}
    named |= {name: optional(name) for name in ("chain", "session", "gate", "threshold")} | {name: wire(name) for name in ON_WIRES}
    packets = _packets(program, template, payload, wire("aux"), wire("trains")) if ops.wire[i] >= 0 else 1
    return Op(
        id=i, kind=Kind(template.kind), payload=payload, members=members, value=max(0, optional("value")),
        duration=_of_task(program.durations, template, rows), task_bytes=_of_task(program.task_bytes, template, rows),
        has_next_train=optional("offset", i + 1) > 0, port=template.net * program.n_nodes + int(ops.node[i]), packets=packets,
        trains=max(1, wire("trains")), **named,
    )  # fmt: skip


def _packets(program: Program, template: Template, n_bytes: int, aux: int, trains: int) -> int:
    if template.net:
        return 1
    framing = program.framings[template.framing]
    return max(1, framing.packets(-(-n_bytes // max(1, trains))) + framing.packets(aux))


def _of_task(table: I64, template: Template, rows: int) -> int:
    """The entry of `table` (durations or memory bytes) for one task of `rows` rows. 0 for kinds without tasks."""
    if template.kind not in (Kind.COMPUTE, Kind.DELAY) or template.duration < 0:
        return 0
    return int(table[template.duration, rows])


def _check(program: Program, op: Op) -> None:
    if op.kind is not Kind.JOIN and op.issuer < 0:
        raise ProgramError(f"{op}: found no issuer, expected one")
    if op.kind not in (Kind.COMPUTE, Kind.DELAY):
        return
    if op.duration <= 0:
        raise ProgramError(f"{op}: found a duration of {op.duration} ps, expected more than 0")
    if op.tasks <= 0:
        raise ProgramError(f"{op}: found {op.tasks} tasks, expected at least 1")
    if int(program.issuers.pool[op.issuer]) < 0:
        raise ProgramError(f"{op}: found issuer {op.issuer} without a pool, expected one with slots")
    if op.chain >= 0 and op.tasks != 1:
        raise ProgramError(f"{op}: found {op.tasks} tasks in a chain, expected 1")
