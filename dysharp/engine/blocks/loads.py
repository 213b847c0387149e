"""Merge table of the switch ports that face a home, as `protocol/merging.py`: which loads go on, wait, or are answered.

Addresses are dense numbers, so the row of an entry is found without a search. The entries of a home are a ring, least recently used
first, through a row of their own behind the last address.
"""

from dysharp.engine.blocks import columns as col
from dysharp.engine.blocks.fifo import list_push
from dysharp.engine.blocks.tables import ring_append, ring_unlink
from dysharp.engine.kernel import block

GOES_ON, WAITS, ANSWERED = range(3)


@block
def _entry_used(s, list_of_home, now, entries):
    """The entry of address s, which is in the list of its home, was used now."""
    ring_unlink(s, col.LOAD_PREV, col.LOAD_NEXT, entries)
    ring_append(s, list_of_home, col.LOAD_PREV, col.LOAD_NEXT, entries)
    entries[s, col.LOAD_USED] = now


@block
def _entry_leave(s, home, places, entries):
    """The entry of address s is free again."""
    ring_unlink(s, col.LOAD_PREV, col.LOAD_NEXT, entries)
    entries[s, col.LOAD_STATE] = col.LOAD_NONE
    places[home] += 1


@block
def room_make(home, places, loads):
    """Without a free place at `home` the least recently used load leaves, if its response is cached."""
    if loads is None:
        return
    entries = loads.entries
    list_of_home = len(entries) - len(places) + home
    s = entries[list_of_home, col.LOAD_NEXT]
    if places[home] == 0 and s != list_of_home and entries[s, col.LOAD_STATE] == col.LOAD_READY:
        _entry_leave(s, home, places, entries)


@block
def _load_begins(s, w, home, now, places, entries):
    """The first load `w` of address s goes on. With a place its response comes to the table."""
    if places[home] == 0:
        return
    places[home] -= 1
    entries[s, col.LOAD_STATE] = col.LOAD_WAIT
    entries[s, col.LOAD_COUNT] = 1
    entries[s, col.LOAD_OWNER] = w
    entries[s, col.LOAD_FIRST] = -1
    entries[s, col.LOAD_USED] = now
    ring_append(s, len(entries) - len(places) + home, col.LOAD_PREV, col.LOAD_NEXT, entries)


@block
def load_look(s, w, home, now, places, loads, link, column):
    """What becomes of load `w` of address s. Loads that wait are linked in `column` of `link`; an answered load may be the last one."""
    entries = loads.entries
    if entries[s, col.LOAD_STATE] == col.LOAD_READY and 0 < loads.timeout[0] < now - entries[s, col.LOAD_USED]:
        _entry_leave(s, home, places, entries)
    if entries[s, col.LOAD_STATE] == col.LOAD_NONE:
        room_make(home, places, loads)
        _load_begins(s, w, home, now, places, entries)
        return GOES_ON
    entries[s, col.LOAD_COUNT] += 1
    _entry_used(s, len(entries) - len(places) + home, now, entries)
    if entries[s, col.LOAD_STATE] == col.LOAD_READY:
        _entry_settle(s, home, places, entries)
        return ANSWERED
    list_push(entries, s, col.LOAD_FIRST, col.LOAD_LAST, link, column, w)
    return WAITS


@block
def _entry_settle(s, home, places, entries):
    """The entry of address s leaves when all loads have come."""
    if entries[s, col.LOAD_COUNT] >= entries[s, col.LOAD_EXPECTED]:
        _entry_leave(s, home, places, entries)


@block
def load_responds(s, w, home, now, places, entries):
    """The response to load `w` of address s is in the switch. Returns the first load that waits for it, -1 = none; -2: `w` has no entry."""
    if entries[s, col.LOAD_STATE] != col.LOAD_WAIT or entries[s, col.LOAD_OWNER] != w:
        return -2
    entries[s, col.LOAD_STATE] = col.LOAD_READY
    _entry_used(s, len(entries) - len(places) + home, now, entries)
    _entry_settle(s, home, places, entries)
    return entries[s, col.LOAD_FIRST]
