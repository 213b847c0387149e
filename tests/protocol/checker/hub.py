"""A tiny MoE-Hub under every order of events: AAU and DAM of one consumer GPU, from row stores to the scaled sum.

Packets of all rows are in flight at once and arrive in any order; so do answers of the map and ends of GEMMs. One row
is `parts` data packets and a source record. A producer's announcement may overtake its rows.
"""

from dataclasses import dataclass, replace
from typing import TypeVar, cast

from dysharp.protocol import aau, dam
from dysharp.protocol.frozen import Table
from tests.protocol.checker.check import Report
from tests.protocol.checker.config import expert_function
from tests.protocol.checker.explore import explore

K = TypeVar("K", bound="int | tuple[int, int]")
V = TypeVar("V")
Step = tuple[str, int, int]
Place = tuple[int, int]  # (region, place)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `token`, which `producer` stores to `expert`, with its gate weight."""

    producer: int
    token: int
    expert: int
    weight: int = 1


@dataclass(frozen=True, slots=True)
class HubConfig:
    """One consumer with `experts` regions. `values`: by token.

    `records`: source records are packets of their own; otherwise they come with the first part of their row.
    `fixed`: rows for which the naive scheme of the DAM waits, None = announced totals.
    """

    values: tuple[int, ...]
    rows: tuple[Row, ...]
    experts: int = 1
    producers: int = 1
    parts: int = 1
    tile_rows: int = 2
    capacity: int = 4
    entries: int = 1
    banks: int = 1
    records: bool = False
    fixed: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a place: one per part, one for the record."""
        return self.parts + self.records


@dataclass(frozen=True, slots=True)
class Hub:
    """One state. `memory`: parts of each row in its place; `work`: tiles that run, with their rows; `results`: by token
    and expert, at the origin."""

    flying: frozenset[Step]
    aau: aau.AauState
    dams: tuple[dam.DamState, ...]
    memory: Table[Place, tuple[int, ...]]
    records: Table[Place, int]
    work: Table[Place, int]
    made: Table[Place, int]
    results: Table[tuple[int, int], int]
    trap: str = ""


def initial(config: HubConfig) -> Hub:
    """All packets in flight."""
    flying: set[Step] = set()
    for i in range(len(config.rows)):
        flying |= {("data", i, part) for part in range(config.parts)}
        flying |= {("record", i, 0)} if config.records else set()
    flying |= {("announce", e, p) for e in range(config.experts) for p in range(config.producers)}
    regions = tuple(aau.Region(0, config.row_bytes, config.capacity) for _ in range(config.experts))
    counters = dam.empty(config.capacity, config.parts, config.tile_rows, config.producers, fixed=config.fixed)
    unit = aau.empty(regions, entries=config.entries, banks=config.banks)
    return Hub(frozenset(flying), unit, (counters,) * config.experts, Table(), Table(), Table(), Table(), Table())


def successors(config: HubConfig, hub: Hub) -> list[tuple[Step, Hub]]:
    """Every step of every part."""
    if hub.trap:
        return []
    steps: list[tuple[Step, Hub]] = []
    for packet in sorted(hub.flying):
        steps.append((packet, _arrive(config, replace(hub, flying=hub.flying - {packet}), packet)))
    for key in hub.aau.waiting:
        unit, outputs = aau.step(hub.aau, aau.MapAnswer(key))
        steps.append((("map", *key), _placed(config, replace(hub, aau=unit), outputs)))
    for tile in hub.work:
        steps.append((("gemm", *tile), _gemm(config, hub, tile)))
    return steps


def _arrive(config: HubConfig, hub: Hub, packet: Step) -> Hub:
    kind, i, part = packet
    if kind == "announce":
        rows = sum(row.expert == i and row.producer == part for row in config.rows)
        return _counted(config, hub, i, dam.Announce(part, rows))
    row = config.rows[i]
    offset = config.parts if kind == "record" else part
    unit, outputs = aau.step(hub.aau, aau.RowPacket((row.expert, row.token), offset, 1, packet))
    return _placed(config, replace(hub, aau=unit), outputs)


def _placed(config: HubConfig, hub: Hub, outputs: tuple[aau.Output, ...]) -> Hub:
    """Write placed packets; each write is acknowledged."""
    for output in outputs:
        if isinstance(output, aau.Overflow):
            return replace(hub, trap=str(output))
        if not isinstance(output, aau.Placed):
            continue
        kind, i, part = cast(Step, output.packet)
        where = (output.key[0], output.place)
        assert output.address == output.place * config.row_bytes + (config.parts if kind == "record" else part)
        if kind == "record" or (part == 0 and not config.records):
            hub = replace(hub, records=hub.records.put(where, i))
            hub = _counted(config, hub, where[0], dam.Record(where[1]))
        if kind == "record":
            continue
        held = hub.memory.get(where) or (0,) * config.parts
        value = (part + 1) * config.values[config.rows[i].token]
        assert held[part] == 0, f"two packets at {where}, part {part}"
        hub = replace(hub, memory=hub.memory.put(where, (*held[:part], value, *held[part + 1 :])))
        hub = _counted(config, hub, where[0], dam.Ack(where[1], 1))
    return hub


def _counted(config: HubConfig, hub: Hub, region: int, event: dam.Event) -> Hub:
    state, outputs = dam.step(hub.dams[region], event)
    hub = replace(hub, dams=(*hub.dams[:region], state, *hub.dams[region + 1 :]))
    for output in outputs:
        if isinstance(output, dam.Ready):
            hub = replace(hub, work=hub.work.put((region, output.tile), output.rows))
        if isinstance(output, dam.Returnable):
            hub = _return(config, hub, region, output.tile)
    return hub


def _gemm(config: HubConfig, hub: Hub, tile: Place) -> Hub:
    """Both GEMMs of a tile end."""
    region, first = tile[0], tile[1] * config.tile_rows
    made = hub.made
    for place in range(first, first + hub.work[tile]):
        parts = hub.memory.get((region, place)) or (0,)
        assert all(parts), f"GEMM of tile {tile} reads row {place}, which is not complete"
        made = made.put((region, place), expert_function(region, sum(parts)))
    return _return(config, replace(hub, made=made, work=hub.work.without(tile)), region, tile[1])


def _return(config: HubConfig, hub: Hub, region: int, tile: int) -> Hub:
    """Ordinary stores to the origins, once the results and all source records of the tile are there."""
    if tile not in hub.dams[region].returnable:
        return hub
    results = hub.results
    for place in range(tile * config.tile_rows, (tile + 1) * config.tile_rows):
        value, i = hub.made.get((region, place)), hub.records.get((region, place))
        if value is not None:
            assert i is not None, f"result of {(region, place)} leaves without its source record"
            results = results.put((config.rows[i].token, region), value)
    return replace(hub, results=results)


def dense(config: HubConfig) -> tuple[int, ...]:
    """The output of the layer by direct computation: one number per token."""
    total = [0] * len(config.values)
    scale = config.parts * (config.parts + 1) // 2
    for row in config.rows:
        total[row.token] += row.weight * expert_function(row.expert, scale * config.values[row.token])
    return tuple(total)


def verdict(config: HubConfig, hub: Hub) -> str | None:
    """The fault of an end: a trap, a kernel that never ends, or a wrong tensor. None: no fault."""
    if hub.trap:
        return f"trap: {hub.trap}"
    for region, state in enumerate(hub.dams):
        left = [tile for tile in range(len(state.counters)) if tile not in state.started and tile not in state.reclaimed]
        if left or not state.all_ready:
            return f"hang: region {region} has tiles {left} that neither start nor end"
    weight = {(row.token, row.expert): row.weight for row in config.rows}
    total = [0] * len(config.values)
    for (token, expert), value in hub.results.items():
        total[token] += weight[token, expert] * value  # scaling at the origin
    found, expected = tuple(total), dense(config)
    return None if found == expected else f"wrong tensor: found {found}, expected {expected}"


def canonical(hub: Hub) -> Hub:
    """The state without the order of entries that no step reads: RAT banks keep theirs, because eviction is FIFO."""
    unit = replace(hub.aau, memory=_sorted(hub.aau.memory), waiting=_sorted(hub.aau.waiting))
    dams = tuple(replace(d, announced=_sorted(d.announced)) for d in hub.dams)
    return replace(
        hub,
        aau=unit,
        dams=dams,
        memory=_sorted(hub.memory),
        records=_sorted(hub.records),
        work=_sorted(hub.work),
        made=_sorted(hub.made),
        results=_sorted(hub.results),
    )


def _sorted(table: Table[K, V]) -> Table[K, V]:
    return Table(sorted(table.items()))


def check_hub(config: HubConfig, *, max_states: int = 2_000_000) -> Report:
    """Explore `config` under every order of events, and judge every end. A complete search without fault is a proof."""

    def following(hub: Hub) -> list[tuple[Step, Hub]]:
        return [(step, canonical(after)) for step, after in successors(config, hub)]

    seen = explore(canonical(initial(config)), following, lambda hub: verdict(config, hub), _name, max_states)
    return Report(seen.states, seen.transitions, len(seen.terminals), seen.complete, seen.reason, seen.path)


def _name(step: Step) -> str:
    return " ".join(map(str, step))
