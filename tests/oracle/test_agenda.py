"""The agenda: order of events, and what an equal key means."""

from __future__ import annotations

from dysharp.oracle.world import Event, _EventHeap


def taken(agenda: _EventHeap) -> list[tuple[int, Event, int, int]]:
    """All events that are left, with the time of each."""
    found = []
    while (event := agenda.take()) is not None:
        found.append((agenda.now, *event))
    return found


def test_time_then_kind_then_resource_then_id() -> None:
    agenda = _EventHeap()
    keys = [(5, Event.ACK, 0, 0), (5, Event.DELIVER, 1, 0), (5, Event.DELIVER, 0, 2), (5, Event.DELIVER, 0, 1), (4, Event.ISSUER, 9, 9)]
    for key in keys:
        agenda.add(*key)
    assert taken(agenda) == sorted(keys)
    assert (agenda.n_events, agenda.now, agenda.due()) == (5, 5, False)


def test_an_event_that_is_pending_is_not_scheduled_twice_and_one_that_was_taken_is() -> None:
    agenda = _EventHeap()
    agenda.add(3, Event.ISSUER, 0, 0)
    agenda.add(3, Event.ISSUER, 0, 0)
    assert not agenda.due()
    assert agenda.take() == (Event.ISSUER, 0, 0)
    assert agenda.take() is None
    agenda.add(3, Event.ISSUER, 0, 0)
    assert agenda.due()
    assert taken(agenda) == [(3, Event.ISSUER, 0, 0)]
