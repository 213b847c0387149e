"""A step of the checked hub: results leave tile by tile."""

from __future__ import annotations

from dataclasses import replace

from dysharp.protocol.frozen import Table
from tests.protocol.checker.hub import HubConfig, Row, _return, initial


def test_only_the_rows_of_the_tile_return() -> None:
    """Four rows in tiles of two, all computed; tile 0 may return."""
    config = HubConfig(values=(1, 2, 3, 4), rows=tuple(Row(0, token, 0) for token in range(4)))
    empty = initial(config)
    made: Table = Table()
    records: Table = Table()
    for place in range(4):
        made, records = made.put((0, place), 10 * place), records.put((0, place), place)
    for returnable, tokens in ((frozenset({0}), [0, 1]), (frozenset({0, 1}), [0, 1]), (frozenset(), [])):
        hub = replace(empty, made=made, records=records, dams=(replace(empty.dams[0], returnable=returnable),))
        assert sorted(token for token, _ in _return(config, hub, 0, 0).results) == tokens
