"""`relayout`: a backward Program on the rows that a forward run has bound."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from dysharp.base.errors import ProgramError
from dysharp.engine.burst.run import run_burst
from dysharp.program import Point, Program, Tail
from dysharp.program.relayout import relayout
from dysharp.program.verify import verify
from dysharp.systems import all_systems, get_system
from dysharp.testing.conformance import backward as rules
from dysharp.testing.conformance.case import Passes, SmallLayer
from tests.systems.layers import layers

LAYERS = layers()
SYSTEMS = list(all_systems())


def passes(system: str, layer: str) -> tuple[Program, Program]:
    known = get_system(system)
    forward, backward = (known.plan(*LAYERS[layer], direction, known.options()) for direction in ("fwd", "bwd"))
    return forward, backward


def both(system: str, layer: str) -> Passes:
    return Passes(get_system(system), SmallLayer(layer, *LAYERS[layer]))


def expert_rows(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """(region of every expert row, first row of that region)."""
    region = np.repeat(np.arange(program.n_regions), np.diff(program.regions.row_ptr))
    region = region[[program.regions.name[i] == "expert" for i in region]]
    return region, program.regions.row_ptr[region]


def even_slots(forward: Program, backward: Program) -> np.ndarray:
    """Slots of the forward's rows if it had filled its regions in the order that a backward Program assumes."""
    region, first = expert_rows(backward)
    n = len(region)
    order = np.lexsort((backward.regions.row_key[:n], region))
    assert (forward.regions.row_key[:n] == backward.regions.row_key[:n][order]).all()
    return (order - first).astype(np.int32)


def columns(program: Program) -> dict[str, np.ndarray]:
    tables = {name: getattr(program, name) for name in ("ops", "members", "regions", "edges", "holds")}
    found = {f"{name}.{f.name}": getattr(table, f.name) for name, table in tables.items() for f in fields(table)}
    return {name: column for name, column in found.items() if isinstance(column, np.ndarray)}


@pytest.mark.sampled
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_slots_are_those_of_the_forward_run(system, layer):
    assert list(rules._backward_takes_the_forward_rows(both(system, layer))) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_rows_keep_what_they_are_for(system):
    assert list(rules._rows_keep_what_they_are_for(both(system, "lognormal"))) == []


@pytest.mark.parametrize("layer", LAYERS)
def test_the_even_layout_changes_nothing(layer):
    forward, backward = passes("dysharp", layer)
    same = columns(relayout(backward, even_slots(forward, backward)))
    for name, column in columns(backward).items():
        assert same[name].dtype == column.dtype, name
        assert (same[name] == column).all(), name


@pytest.mark.sampled
@pytest.mark.parametrize("system", [pytest.param(s, marks=pytest.mark.slow) if i % 2 else s for i, s in enumerate(SYSTEMS)])
def test_engine_and_oracle_agree_on_it(system):
    assert list(rules._oracle_agrees_on_the_forward_rows(both(system, "lognormal"))) == []


def test_points_of_rows_move_along():
    """Edges and holds that name a row name it still."""
    forward, backward = passes("deepep", "uniform")
    e, h, row = backward.edges, backward.holds, 3
    edges = replace(e, tail_kind=e.tail_kind.copy(), tail=e.tail.copy(), head_kind=e.head_kind, head=e.head)
    edges.tail_kind[0], edges.tail[0] = Tail.ROW_COMPLETE, row
    one = np.array([0], np.int32)
    holds = replace(h, sem=one, amount=one + 1, acquire_kind=one + Point.ROW_FIRST_TOUCH, acquire=one + row, release_kind=one, release=one)
    slots = run_burst(forward)[0].row_slot
    moved = relayout(replace(backward, edges=edges, holds=holds), slots)
    new = int(moved.edges.tail[0])
    assert new == moved.holds.acquire[0]
    assert moved.holds.release[0] == 0
    assert moved.regions.row_key[new] == backward.regions.row_key[row]
    assert (moved.edges.tail[1:] == e.tail[1:]).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda slots: slots[:5], r"found slots of 5 rows, expected at least the \d+ rows of tiled regions"),
        (lambda slots: np.where(np.arange(len(slots)) == 2, -1, slots), r"found slot -1 of forward row 2, expected 0 \.\. \d+"),
        (lambda slots: np.where(np.arange(len(slots)) == 1, slots[0], slots), r"rows in slot \d+ of region 0, expected one"),
    ],
)
def test_slots_that_do_not_fit(change, text):
    forward, backward = passes("deepep", "uniform")
    with pytest.raises(ProgramError, match=text):
        relayout(backward, change(run_burst(forward)[0].row_slot))


def test_a_forward_with_rows_in_reverse_order_is_refused():
    """`relayout` would put nearly all rows of its backward in wrong places."""
    forward, _ = passes("deepep", "uniform")
    r, n = forward.regions, len(expert_rows(forward)[0])
    region, first = expert_rows(forward)
    reverse = first + r.row_ptr[region + 1] - 1 - np.arange(n)
    new = np.concatenate((reverse, np.arange(n, forward.n_rows))).astype(np.int32)
    backwards = replace(
        forward,
        regions=replace(r, row_key=r.row_key[new], row_notify=r.row_notify[new]),
        members=replace(forward.members, fill_row=new[forward.members.fill_row]),
    )
    with pytest.raises(ProgramError, match=r"row 1 of region 0 \(node 0\): found key \d+ behind key \d+, expected rising keys"):
        verify(backwards)


def test_a_forward_program_binds_its_own_rows():
    forward, _ = passes("deepep", "uniform")
    with pytest.raises(ProgramError, match="relayout: found region 0 bound by arrival, expected PREFIX"):
        relayout(forward, run_burst(forward)[0].row_slot)
