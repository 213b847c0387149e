"""Mutants: the engine with one fault each. They measure how many faults the comparison with the oracle catches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from dysharp.errors import DysharpError
from dysharp.oracle import run_oracle
from dysharp.program import Program, Trace
from dysharp.testing.plain import PlainEngine, TooManySteps, source
from dysharp.testing.random_programs import random_program

MAX_STEPS = 400_000  # about ten times the steps of a tiny Program


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of `module`: `old`, which occurs exactly once, becomes `new`."""

    name: str
    module: str
    old: str
    new: str

    def text(self) -> str:
        """The changed source. Raises DysharpError unless `old` occurs exactly once."""
        text = source(self.module)
        if text.count(self.old) != 1:
            found = f"found {text.count(self.old)} times {self.old!r}"
            raise DysharpError(f"mutant {self.name!r}: {found}, expected once in {self.module}")
        return text.replace(self.old, self.new)


def engine(mutant: Mutant | None = None) -> PlainEngine:
    """The plain engine, with `mutant` if given."""
    return PlainEngine({mutant.module: mutant.text()} if mutant else None, MAX_STEPS)


def difference(plain: PlainEngine, program: Program, expected: Trace) -> str | None:
    """The difference of `plain` from `expected` on `program`: column, exception or deadlock; None if equal."""
    try:
        found = plain.run(program)
    except TooManySteps:
        return "never ends"
    except Exception as error:  # a mutant may break in any way
        return f"{type(error).__name__}: {error}"
    for f in fields(Trace):
        if f.name != "n_events" and not np.array_equal(getattr(found, f.name), getattr(expected, f.name)):
            return f"different column {f.name}"
    return None


@cache
def _expected(make: Callable[[int], Program], seed: int) -> tuple[Program, Trace]:
    program = make(seed)
    return program, run_oracle(program)


def caught(mutant: Mutant, seeds: Iterable[int], make: Callable[[int], Program] = random_program) -> tuple[int, str] | None:
    """(seed, difference) of the first random Program of `make` on which `mutant` differs from the oracle, else None."""
    plain = engine(mutant)
    for seed in seeds:
        how = difference(plain, *_expected(make, seed))
        if how:
            return seed, how
    return None


LINK, SWITCH, READY, ISSUE = "uarch.link", "uarch.switch", "uarch.ready", "uarch.issue"
FIFO, HEAP, BITS, TREE, REGION, MEMORY = "uarch.fifo", "uarch.heap", "uarch.bits", "uarch.tree", "uarch.region", "uarch.memory"
TRAINS, TRANSFERS, HUB_TABLE, ROW_TABLE = "uarch.trains", "uarch.transfers", "uarch.hub_table", "uarch.row_table"
LOOP, LOWER = "engine.burst.loop", "engine.burst.lower"

MUTANTS = (
    # links
    Mutant("debt is never paid", LINK, "SERVER_BUSY_BYTES] += debt + wire", "SERVER_BUSY_BYTES] += wire"),
    Mutant("floor instead of ceil", LINK, "* 1_000_000 + rate - 1) // rate", "* 1_000_000) // rate"),
    Mutant("idle time forgives no debt", LINK, "debt = debt - drained if drained < debt else 0", "debt = debt"),
    Mutant("drained debt rounded up", LINK, "drained = gap * rate // 1_000_000", "drained = -(-gap * rate // 1_000_000)"),
    Mutant("each train its own busy period", LINK, "if gap > 0:", "if gap >= 0:"),
    Mutant("no cut-through wait", LINK, "if end < until:", "if False:"),
    Mutant(
        "cut-through wait keeps the busy period",
        LINK,
        "BUSY_BYTES] = 0\n        nodes[i, side + SERVER_FREE]",
        "BUSY_BYTES] += 0\n        nodes[i, side + SERVER_FREE]",
    ),
    # buffers and credits
    Mutant("credit skipped", SWITCH, "occupied[row, op[o, VC]] -= wires[op[o, WIRE], WIRE_UP]", "pass"),
    Mutant("credit one instant late", SWITCH, "SCRATCH] <= now:", "SCRATCH] < now:"),
    Mutant("credit without latency", SWITCH, "ot[o, SCRATCH] = clock.x[RUN_NOW] + nodes[i, PORT_LAT]", "ot[o, SCRATCH] = clock.x[RUN_NOW]"),
    Mutant("one byte less room", SWITCH, "least + wire > vc_bytes", "least + wire >= vc_bytes"),
    Mutant("one train more room", SWITCH, "least + wire > vc_bytes", "least > vc_bytes"),
    Mutant("no large train in an empty channel", SWITCH, "if least > 0 and least", "if least"),
    Mutant("always the first channel", SWITCH, "occupied[row, v] < least", "occupied[row, v] < 0"),
    Mutant("the fullest channel", SWITCH, "occupied[row, v] < least", "occupied[row, v] > least"),
    Mutant("all trains exposed", TRAINS, "is_first = channels[row, 0] < 0", "is_first = True"),
    Mutant("next train never exposed", SWITCH, "                channel_advance(row, ops, mem, links, switch, clock)", "                pass"),
    Mutant("no limit of the output buffers", SWITCH, "held[at] + n_bytes <= limit", "True"),
    Mutant("room never given back", TRAINS, "switch.held[j * m[HARDWARE_CLASSES] + c] -= n_bytes", "pass"),
    Mutant("copies overtake those that wait", SWITCH, "if set_empty(switch.out_mask, at) and has_room(", "if has_room("),
    Mutant("a turn is one train", TRAINS, "return c - 1 if", "return c if"),
    # tables of hubs
    Mutant("every row is a miss", HUB_TABLE, "if asked[row, ASKED_CACHED] == 1:", "if False:"),
    Mutant("misses take no register", HUB_TABLE, "begin = max(begin, finish[hub, slot])", "pass"),
    Mutant("the newest row is dropped", HUB_TABLE, "victim = asked[n_rows + hub, ASKED_NEXT]", "victim = asked[n_rows + hub, ASKED_PREV]"),
    Mutant("lookups pass a full table", HUB_TABLE, "hubs[hub, HUB_CLOCK] = begin", "pass"),
    Mutant("copies leave a table out of order", HUB_TABLE, "max(known, mem_time[last, MEMBER_TIME])", "known"),
    Mutant("a miss costs nothing", HUB_TABLE, "asked[row, ASKED_KNOWN] = begin + kinds[table, TABLE_MISS_PS]", "asked[row, ASKED_KNOWN] = begin"),
    # row tables
    Mutant("every row table is a cache", HUB_TABLE, "if tables.kinds[table, TABLE_ALLOCATES] == 1:", "if False:"),
    Mutant("new rows are known to be new", ROW_TABLE, "return spilled", "return places[row, PLACE_STATE] == ROW_SPILLED and spilled"),
    Mutant("spilled rows come back unread", ROW_TABLE, "return spilled", "return places[row, PLACE_STATE] != ROW_SPILLED and spilled"),
    Mutant("rows that come back stay spilled", ROW_TABLE, "        spilled[places[row, PLACE_REGION]] -= 1\n", "        pass\n"),
    Mutant("the newest row is spilled", ROW_TABLE, "victim = places[bank, PLACE_NEXT]", "victim = places[bank, PLACE_PREV]"),
    Mutant("a bank is never full", ROW_TABLE, "if entries > 0 and places[bank", "if entries < 0 and places[bank"),
    Mutant("complete rows stay", ROW_TABLE, "    places[row, PLACE_LEFT] -= 1\n    if", "    if"),
    Mutant("complete rows keep their entry", ROW_TABLE, "    places[places[row, PLACE_BANK], PLACE_STATE] -= 1\n", ""),
    Mutant("one bank", LOWER, "(region + np.arange(n, dtype=np.int32)) % np.int32(banks)", "0"),
    Mutant("banks have no regions", LOWER, "(region + np.arange(n, dtype=np.int32)) % np", "np.arange(n, dtype=np.int32) % np"),
    Mutant("no wait for a read under way", HUB_TABLE, "        if state == ROW_READ:", "        if False:"),
    Mutant("late requests are answered at once", TRANSFERS, "now + clock.m[HARDWARE_RESPONDER]", "now"),
    Mutant(
        "store and forward",
        TRAINS,
        "ot[o, SCRATCH] = now + nodes[i, PORT_LAT]\n    op[o, VC]",
        "ot[o, SCRATCH] = end + nodes[i, PORT_LAT]\n    op[o, VC]",
    ),
    # networks
    Mutant("messages are free", LINK, "debt + wire + message", "debt + wire"),
    Mutant("copies cost a message too", TRAINS, "DOWN, now, n_bytes, 0)", "DOWN, now, n_bytes, nodes[j, PORT_MESSAGE])"),
    Mutant("acknowledgements of all networks take one time", TRANSFERS, "now + nodes[port, PORT_ACK]", "now + nodes[0, PORT_ACK]"),
    Mutant("owners in other networks are remote", READY, "owner = op[o, NODE] % m[HARDWARE_NODES]", "owner = op[o, NODE]"),
    Mutant("slow nodes are as fast as others", LOWER, "rate = other.rate_of(node)", "rate = other.rate"),
    # memory
    Mutant("memory forgets what is promised", MEMORY, "PROMISED] += (", "PROMISED] = now + ("),
    Mutant("memory promises the past", MEMORY, "PROMISED] = max(nodes[node, PROMISED], now)", "PROMISED] = nodes[node, PROMISED]"),
    Mutant("memory rounds down", MEMORY, "+ m[HARDWARE_MEMORY] - 1) //", ") //"),
    Mutant("a batch takes the bytes of one task", ISSUE, "n * slots.task_bytes[took", "slots.task_bytes[took"),
    Mutant("a task never waits for memory", ISSUE, "end = max(end, memory_take(", "end = min(end, memory_take("),
    Mutant("pushes read nothing", TRAINS, "    if not templates[op[o, TEMPLATE], IS_PULL]:", "    if False:"),
    Mutant("deliveries write nothing", TRANSFERS, "memory_take(nodes, mem[k, MEMBER_NODE], links.wires[w, WIRE_PAYLOAD], clock.m, now)", "pass"),
    # classes and arbitration
    Mutant("another class at the outputs", SWITCH, " + c\n        n_bytes", "\n        n_bytes"),
    Mutant("response in the class of requests", TRAINS, "op[mem[k, MEMBER_OP], TEMPLATE], RESPONSE_CLS]", "op[mem[k, MEMBER_OP], TEMPLATE], CLS]"),
    Mutant("result in the class of requests", TRAINS, "c = templates[op[o, TEMPLATE], RESPONSE_CLS]", "c = templates[op[o, TEMPLATE], CLS]"),
    Mutant("class cursor of up servers stands", TRAINS, "nodes[i, UP + SERVER_CURSOR] = turn_after(c, entry, ops.op)", "pass"),
    Mutant("class cursor of down servers stands", TRAINS, "        nodes[j, DOWN + SERVER_CURSOR] = c\n", "        pass\n"),
    Mutant("source cursor stands", SWITCH, "switch.out_cursor[at] = s", "pass"),
    Mutant("round robin stays at its cursor", BITS, "~((2 << cursor) - 1)", "~((1 << cursor) - 1)"),
    Mutant("sources from the lowest", BITS, "words[row, start] & ~((1 << ((cursor + 1) & 31)) - 1)", "words[row, start]"),
    # queues and order of events
    Mutant(
        "switch queues are stacks",
        FIFO,
        "        link[ends[row, 1], column] = entry\n    ends",
        "        link[entry, column] = ends[row, 0]\n        ends[row, 0] = entry\n        return\n    ends",
    ),
    Mutant(
        "worklist is a stack",
        READY,
        "        work_link(x[RUN_WORK_TAIL], point, ops.op, ops.points)\n",
        "        work_link(point, x[RUN_WORK_HEAD], ops.op, ops.points)\n        x[RUN_WORK_HEAD] = point\n        return\n",
    ),
    Mutant(
        "ring ties by node backwards",
        FIFO,
        "node[tail, node_column] < node[entry, node_column]",
        "node[tail, node_column] > node[entry, node_column]",
    ),
    Mutant("ring ties by id backwards", FIFO, "and tail < entry)", "and tail > entry)"),
    Mutant("heap ties in any order", HEAP, "(pk == key and ids[base + parent] < entry)", "pk == key"),
    Mutant("heap takes the larger child", HEAP, "keys[base + right] < keys[base + child] or", "keys[base + right] > keys[base + child] or"),
    Mutant("event ties to the later kind", TREE, "if tree[node] != t:", "if tree[node + 1] == t:"),
    Mutant("tree stops too early", TREE, "if tree[node] == t:", "if tree[node] <= t:"),
    Mutant("time zero in descending order", LOOP, "in range(ops.op.shape[0] - 1):", "in range(ops.op.shape[0] - 2, -1, -1):"),
    # issuers, windows, slots
    Mutant("window one too small", ISSUE, ">= hold_amount[taken]", "> hold_amount[taken]"),
    Mutant("window one too large", ISSUE, ">= hold_amount[taken]", ">= hold_amount[taken] - 1"),
    Mutant("half a hold is kept", ISSUE, "sem_left[hold_sem[h]] += hold_amount[h]", "pass"),
    Mutant("hold is free", ISSUE, "sem_left[hold_sem[taken]] -= hold_amount[taken]", "pass"),
    Mutant("hold never given back", READY, "sem_left[s] += releases.release_amount[h]", "pass"),
    Mutant("no issuer is told that a hold was given back", READY, "mark(issue.dirty_issuers, x, releases.sem_issuer[k])", "pass"),
    Mutant("gang takes a slot too many", ISSUE, "min(pools[p, POOL_FREE], op[o, ANSWERS])", "min(pools[p, POOL_FREE] + 1, op[o, ANSWERS])"),
    Mutant("gang starts when its last task does", ISSUE, "if ot[o, START] < 0:", "if True:"),
    Mutant("ready queue is a stack", READY, "order = issuers[i, ISSUER_SEQ]", "order = -issuers[i, ISSUER_SEQ]"),
    Mutant("no priorities", READY, "(op[o, PRIO] << 40) + order", "order"),
    Mutant("no keys", READY, "order = op[o, KEY] + 1", "order = 0"),
    Mutant("turns never move on", ISSUE, "issuers[i, ISSUER_SEQ] = queue - issuers[i, ISSUER_NEXT]", "pass"),
    Mutant("a turn ends before the last queue", ISSUE, "range(1, n + 1)", "range(1, n)"),
    Mutant("issuer of a queue is not told", READY, "owner = issuers[i, ISSUER_OWNER]", "owner = i"),
    Mutant("program order does not wait", ISSUE, " and ops.ot[issuer_ops[at], READY] >= 0:", ":"),
    # delivery, answers, acknowledgements
    Mutant("acknowledgement dropped at the member", TRANSFERS, "server_debt(nodes, mem[k, MEMBER_NODE], UP, links.wires[w, WIRE_ACK_UP])", "pass"),
    Mutant("acknowledgement dropped at the source", TRANSFERS, "server_debt(nodes, op[o, NODE], DOWN, links.wires[w, WIRE_ACK_DOWN])", "pass"),
    Mutant(
        "acknowledgement dropped after a local end",
        TRANSFERS,
        "server_debt(nodes, op[o, NODE], DOWN, links.wires[op[o, WIRE], WIRE_ACK_DOWN])",
        "pass",
    ),
    Mutant("no responder latency", TRAINS, "arrival + m[HARDWARE_RESPONDER]", "arrival"),
    Mutant("local members at once", ISSUE, "now + m[HARDWARE_LOCAL]", "now"),
    Mutant("result behind the request's tail", TRAINS, "bound = ot[entry, END] + nodes[j, PORT_LAT]", "bound = ot[entry, TAIL] + nodes[j, PORT_LAT]"),
    Mutant("copies behind the answers' tail", TRAINS, "bound = ot[o, TAIL] + nodes[j, PORT_LAT]", "bound = ot[o, END] + nodes[j, PORT_LAT]"),
    Mutant("tail of the last answer, not the latest", TRAINS, "max(ot[o, END], end_tail)", "end_tail"),
    Mutant("first answer makes the result", TRAINS, "op[o, ANSWERS] -= 1", "op[o, ANSWERS] = 0"),
    Mutant("pull done without its locals", ISSUE, "n_local + 1 if", "1 if"),
    Mutant("no stripe of trains", TRAINS, "end + links.wires[w, WIRE_STRIPE_UP]", "end"),
    Mutant("no stripe of answers", TRAINS, "end + links.wires[w, WIRE_STRIPE_RESPONSE]", "end"),
    Mutant("extra bytes of a copy are free", TRAINS, " + mem[k, MEMBER_EXT]", ""),
    # rows, tiles, notifications
    Mutant("slot taken by the last byte", REGION, "if rows[row, ROW_SLOT] < 0:", "if rows[row, ROW_SLOT] < 0 and rows[row, ROW_LEFT] == n_bytes:"),
    Mutant("row belongs to the next tile", REGION, "rows[row, ROW_SLOT] // regions[r", "(rows[row, ROW_SLOT] + 1) // regions[r"),
    Mutant("row complete too early", REGION, "if rows[row, ROW_LEFT] == 0:", "if rows[row, ROW_LEFT] <= 1000:"),
    Mutant(
        "last tile is a whole one", LOWER, "np.minimum(r.tile_rows[region_of_tile], counts[region_of_tile] - first)", "r.tile_rows[region_of_tile]"
    ),
    Mutant("bound rows are first-touch rows", LOWER, "np.repeat(r.alloc == Alloc.PREFIX, counts)", "np.repeat(r.alloc == -1, counts)"),
    Mutant("all rows told at once", READY, "if owner == here:", "if True:"),
    Mutant("local rows told with the others", READY, "if owner == here:", "if False:"),
    Mutant("tile tells at its first edge", READY, "if tiles[t, TILE_NOTIFY_DEPS] != 0:", "if False:"),
    Mutant("notification costs the owner nothing", READY, "server_debt(nodes, owner, DOWN, m[HARDWARE_NOTIFY_BYTES])", "pass"),
    Mutant("notification costs the teller nothing", READY, "server_debt(nodes, here, UP, m[HARDWARE_NOTIFY_BYTES])", "pass"),
    Mutant("no cause", READY, "op[o, CAUSE] = cause", "op[o, CAUSE] = -1"),
)
