"""The tables of a hub at burst level: when the places of a copy's rows are known (oracle/hub_table.py)."""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.tables import ring_append, ring_unlink, row_enter, row_place, row_reads
from dysharp.engine.kernel import block


@block
def _row_cache(row, hub, n_rows, entries, hubs, asked):
    """Row `row` enters the cache of `hub`; a full cache drops the row that was asked for least recently."""
    ring_append(row, n_rows + hub, col.ASKED_PREV, col.ASKED_NEXT, asked)
    asked[row, col.ASKED_CACHED] = 1
    if entries > 0 and hubs[hub, col.HUB_CACHED_ROWS] == entries:
        victim = asked[n_rows + hub, col.ASKED_NEXT]
        ring_unlink(victim, col.ASKED_PREV, col.ASKED_NEXT, asked)
        asked[victim, col.ASKED_CACHED] = 0
    else:
        hubs[hub, col.HUB_CACHED_ROWS] += 1


@block
def _row_miss(row, hub, table, begin, kinds, hubs, finish, asked):
    """A miss that is looked up at `begin` reads memory when it has a register. Returns when it takes one."""
    registers = kinds[table, col.TABLE_MISSES]
    if registers > 0:
        slot = hubs[hub, col.HUB_MISSES] % registers
        begin = max(begin, finish[hub, slot])
        finish[hub, slot] = begin + kinds[table, col.TABLE_MISS_PS]
    hubs[hub, col.HUB_MISSES] += 1
    asked[row, col.ASKED_KNOWN] = begin + kinds[table, col.TABLE_MISS_PS]
    return begin


@block
def _lookups_end(hub, begin, known, arrival, hubs):
    """All rows of a member that arrived at `arrival` were looked up, the last one at `begin`. Returns when all places are known."""
    hubs[hub, col.HUB_CLOCK] = begin
    hubs[hub, col.HUB_WAIT_PS] += max(known, begin) - arrival
    return max(known, begin)


@block
def _rows_placed(k, table, node, arrival, members, tables):
    """As `rows_ask`, of a row table."""
    mem, kinds, hubs, finish, asked, places = members.mem, tables.kinds, tables.hubs, tables.finish, tables.asked, tables.places
    hub = table * tables.waits.shape[0] + node
    begin = max(arrival, hubs[hub, col.HUB_CLOCK])
    known = begin
    for f in range(mem[k, col.MEMBER_FILL], mem[k + 1, col.MEMBER_FILL]):
        row = members.fill_row[f]
        hubs[hub, col.HUB_LOOKUPS] += 1
        state = places[row, col.PLACE_STATE]
        if state <= col.ROW_SPILLED:
            state = col.ROW_HELD
            if row_reads(row, places, tables.spilled):
                state = col.ROW_READ
                begin = _row_miss(row, hub, table, begin, kinds, hubs, finish, asked)
            if not row_enter(row, state, kinds[table, col.TABLE_ENTRIES], places, tables.spilled):
                hubs[hub, col.HUB_CACHED_ROWS] += 1
        if state == col.ROW_READ:
            known = max(known, asked[row, col.ASKED_KNOWN])
        if row_place(row, places):
            hubs[hub, col.HUB_CACHED_ROWS] -= 1
    return _lookups_end(hub, begin, known, arrival, hubs)


@block
def rows_ask(k, table, node, arrival, members, tables):
    """Member k asks for the places of its rows when it arrives at the hub of `node`. Returns when all are known.

    Lookups are in the order of arrival. A miss without a free register holds up all lookups behind it.
    """
    if tables.kinds[table, col.TABLE_ALLOCATES] == 1:
        return _rows_placed(k, table, node, arrival, members, tables)
    mem, kinds, hubs, finish, asked = members.mem, tables.kinds, tables.hubs, tables.finish, tables.asked
    hub = table * tables.waits.shape[0] + node
    n_rows = asked.shape[0] - hubs.shape[0]
    begin = max(arrival, hubs[hub, col.HUB_CLOCK])
    known = begin
    for f in range(mem[k, col.MEMBER_FILL], mem[k + 1, col.MEMBER_FILL]):
        row = members.fill_row[f]
        hubs[hub, col.HUB_LOOKUPS] += 1
        if asked[row, col.ASKED_CACHED] == 1:
            ring_unlink(row, col.ASKED_PREV, col.ASKED_NEXT, asked)
            ring_append(row, n_rows + hub, col.ASKED_PREV, col.ASKED_NEXT, asked)
        else:
            begin = _row_miss(row, hub, table, begin, kinds, hubs, finish, asked)
            _row_cache(row, hub, n_rows, kinds[table, col.TABLE_ENTRIES], hubs, asked)
        known = max(known, asked[row, col.ASKED_KNOWN])
    return _lookups_end(hub, begin, known, arrival, hubs)
