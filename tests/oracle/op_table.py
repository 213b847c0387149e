"""A small Program as lines of text, one per op."""

from __future__ import annotations

from dysharp.program.tables import Discipline, Head, Kind, Point, Program, Tail

COLUMNS = ("op", "kind", "at", "to", "issued by", "waits for", "notes")


def op_lines(program: Program) -> list[list[str]]:
    """Id and name, kind, node, members (rows they fill), issuer, what it waits for, and other columns."""
    return [_line(program, i) for i in range(program.n_ops)]


def _line(p: Program, i: int) -> list[str]:
    template = p.templates[int(p.ops.template[i])]
    return [
        f"{i} {template.name}",
        Kind(template.kind).name,
        str(p.ops.node[i]),
        ", ".join(_member(p, m) for m in range(p.members.ptr[i], p.members.ptr[i + 1])),
        _issuer(p, int(p.ops.issuer[i])),
        ", ".join(_waits(p, i)),
        ", ".join(_notes(p, i)),
    ]


def _member(p: Program, m: int) -> str:
    rows = p.members.fill_row[p.members.fill_ptr[m] : p.members.fill_ptr[m + 1]].tolist()
    return f"{p.members.node[m]}" + "".join(f" r{row}" for row in rows)


def _issuer(p: Program, i: int) -> str:
    if i < 0:
        return ""
    plain = {"send": "", "sm": "SM", "host": "host"}
    name = p.issuers.name[i].split(".")[-1]
    discipline = Discipline(int(p.issuers.discipline[i]))
    order = "" if discipline is Discipline.READY_FIFO or name == "host" else f", {discipline.name}"
    return plain.get(name, name) + order


def _tail(kind: Tail, tail: int, p: Program) -> str:
    if kind is Tail.MEMBER_DELIVERED:
        return f"delivery of op {int((p.members.ptr <= tail).sum()) - 1}"
    return {
        Tail.OP_DONE: f"op {tail}",
        Tail.OP_ISSUED: f"issue of op {tail}",
        Tail.TILE_READY: f"tile {tail}",
        Tail.ROW_COMPLETE: f"row {tail}",
    }[kind]


def _waits(p: Program, i: int) -> list[str]:
    out = [_tail(k, t, p) for k, t in _into(p, Head.OP_ISSUE, i)]
    for row in (p.regions.row_notify == i).nonzero()[0].tolist():
        tile = next(t for t in range(p.n_tiles) if row in _rows_of(p, t))
        after = " and ".join(_tail(k, t, p) for k, t in _into(p, Head.TILE_NOTIFY, tile))
        out.append(f"notice of row {row} (tile {tile} tells after {after})")
    return out


def _into(p: Program, head: Head, ident: int) -> list[tuple[Tail, int]]:
    e = p.edges
    hits = ((e.head_kind == head) & (e.head == ident)).nonzero()[0].tolist()
    return [(Tail(int(e.tail_kind[h])), int(e.tail[h])) for h in hits]


def _rows_of(p: Program, tile: int) -> range:
    r = int((p.regions.tile_ptr <= tile).sum()) - 1
    first = int(p.regions.row_ptr[r]) + (tile - int(p.regions.tile_ptr[r])) * int(p.regions.tile_rows[r])
    return range(first, min(first + int(p.regions.tile_rows[r]), int(p.regions.row_ptr[r + 1])))


def _notes(p: Program, i: int) -> list[str]:
    o, out = p.ops, []
    if o.chain is not None and o.chain[i] >= 0:
        mode = "HOLD" if p.chains is not None and p.chains.mode[o.chain[i]] == 0 else "YIELD"
        out.append(f"chain {o.chain[i]} {mode}")
    if o.session is not None and o.session[i] >= 0:
        out.append(f"session {o.session[i]}")
    if o.threshold is not None and o.threshold[i] >= 0:
        out.append(f"threshold {o.threshold[i]} + announced")
    if o.value is not None and o.value[i] > 0:
        out.append(f"announces {o.value[i]}")
    out += [f"cancelled by {_tail(k, t, p)}" for k, t in _into(p, Head.JOIN_CANCEL, i)]
    for h in range(len(p.holds.sem)):
        name = p.semaphores.name[p.holds.sem[h]].split(".", 1)[-1]
        if p.holds.acquire_kind[h] == Point.OP_ISSUED and p.holds.acquire[h] == i:
            out.append(f'takes "{name}" until op {p.holds.release[h]}')
        if p.holds.acquire_kind[h] == Point.ROW_FIRST_TOUCH and p.holds.release[h] == i:
            out.append(f'gives back "{name}" taken at first touch of row {p.holds.acquire[h]}')
    return out
