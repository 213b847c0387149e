"""Orders of schedules against the programs that define them, their bubbles against published tables and formulas."""

from __future__ import annotations

import csv
import gzip
import io
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dysharp.base.errors import ConfigError
from dysharp.training.graph import replay_schedule
from dysharp.training.schedules import Cell, Schedule, Times, all_schedules, equal_times, get_schedule, in_flight, make_schedule

DATA = Path(__file__).parent / "data"
NAMES = {
    "DualPipe": "dualpipe", "DualPipeV": "dualpipev", "1f1b": "1f1b", "interleaved vpp2": "interleaved", "Interleaved1F1B": "interleaved",
    "InterleavedZeroBubble": "interleaved-zb", "LoopedBFS": "loop-bfs", "zb1p (max_mem p*mem_f)": "zb-1p", "zb2p (max_mem 2p*mem_f)": "zb-2p",
    "ZBVZeroBubble": "zbv", "zbv": "zbv-greedy", "v-half": "v-half", "v-min": "v-min",
}  # fmt: skip


@cache
def made(name: str, ranks: int, batches: int, chunks: int, costs: str) -> Schedule:
    f, i, w, hop = map(int, re.findall(r"\d+", costs)) if costs else (1, 1, 1, 0)
    return make_schedule(name, ranks, batches, chunks, times=equal_times(get_schedule(name).stages(ranks, chunks), f, i, w, hop))


def written(schedule: Schedule, rank: int, row: dict[str, str]) -> str:
    """The order of a rank in the words of the program that a golden row comes from."""
    if row["schedule"] == "DualPipe":  # names the phases of a rank, and ranks of the second half swap the directions
        swap = rank >= schedule.ranks // 2
        return re.sub(r"(\d+)([FBIW])(\d+)('?)", lambda cell: f"{int(bool(cell[4])) ^ swap}{cell[2]}{cell[3]}", schedule.text(rank))
    if row["source"].startswith("torch"):
        return schedule.text(rank).replace(")", ")OVERLAP_F_B")
    words = {"B": "BW", "I": "B"}

    def word(cell: Cell) -> str:
        return f"{words.get(cell.kind, cell.kind)}{cell.microbatch}" + (f"c{cell.chunk}" if row["vpp"] != "1" else "")

    return " ".join(word(slot[0]) for slot in schedule.slots[rank])


def test_orders_equal_the_reference_programs_rank_by_rank() -> None:
    with gzip.open(DATA / "schedules_golden.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(io.StringIO(file.read())))
    wrong = []
    for row in rows:
        ranks, chunks, batches, rank = (int(row[name]) for name in ("p", "vpp", "m", "rank"))
        found = written(made(NAMES[row["schedule"]], ranks, batches, chunks, row["costs"]), rank, row)
        if found != " ".join(word for word in row["order"].split() if word != "."):
            wrong.append((row["schedule"], ranks, chunks, batches, row["costs"], rank))
    assert (len(rows), wrong) == (826, [])


def test_bubbles_of_the_zero_bubble_tables_to_four_digits() -> None:
    """The two smaller models; all columns but 1F1B-I, whose count of hops is not printed."""
    compared = 0
    for row in csv.DictReader((DATA / "zb_tables.csv").open()):
        f, i, w, hop = (round(1000 * float(row[name])) for name in ("TF_ms", "TB_ms", "TW_ms", "Tcomm_ms"))
        ranks, batches = int(row["p"]), int(row["m"])
        if ranks == 8:
            compared += _compare(row, equal_times(ranks, f, i, w, hop), batches)
    assert compared == 30


@pytest.mark.slow
def test_bubbles_of_the_largest_models() -> None:
    rows = [row for row in csv.DictReader((DATA / "zb_tables.csv").open()) if int(row["p"]) > 8]
    for row in rows:
        f, i, w, hop = (round(1000 * float(row[name])) for name in ("TF_ms", "TB_ms", "TW_ms", "Tcomm_ms"))
        assert _compare(row, equal_times(int(row["p"]), f, i, w, hop), int(row["m"])) == 5
    assert len(rows) == 6


def _compare(row: dict[str, str], times: Times, batches: int) -> int:
    names = ("1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")
    for name in names:
        _, bubbles = replay_schedule(make_schedule(name.lower(), len(times.forward), batches, times=times), times)
        rate = bubbles.rate(batches * (times.forward[0] + times.dgrad[0] + times.wgrad[0]))
        assert f"{rate:.4f}" == f"{float(row['bubble_' + name]):.4f}", (row["model"], batches, name)
    return len(names)


@pytest.mark.parametrize(("ranks", "batches", "makespan"), [(2, 4, 12), (4, 8, 26), (4, 12, 38), (8, 16, 54), (8, 20, 66), (16, 32, 110)])
@pytest.mark.parametrize(("unit", "pair"), [(2, 6), (2, 5), (4, 10)])  # (F, B, W, F&B) = (1, 2, 1, 3), (1, 2, 1, 2.5), (2, 4, 2, 5), doubled
def test_dualpipe_equals_its_formula(ranks: int, batches: int, makespan: int, unit: int, pair: int) -> None:
    _, bubbles = replay_schedule(make_schedule("dualpipe", ranks, batches), equal_times(ranks, unit, unit, unit, 0, pair / (3 * unit)))
    assert bubbles.of_least_busy == (ranks // 2 - 1) * (pair + 2 * unit - 3 * unit)
    if (unit, pair) == (2, 6):
        assert bubbles.makespan == 2 * makespan


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_dualpipev_equals_the_formula_of_its_stages(ranks: int) -> None:
    """2p stages on p ranks: the formula with PP = 2p. With PP = p ranks the formula says less than half of it."""
    _, bubbles = replay_schedule(make_schedule("dualpipev", ranks, 2 * ranks + 2), equal_times(2 * ranks))
    assert bubbles.of_least_busy == (2 * ranks // 2 - 1) * (3 + 2 - 3)
    assert bubbles.of_least_busy > 2 * (ranks // 2 - 1) * (3 + 2 - 3)


FLIGHT = {
    "1f1b": ([4, 3, 2, 1], [*range(8, 0, -1)]), "interleaved": ([11, 9, 7, 5], [*range(23, 8, -2)]), "zb-1p": ([4, 3, 2, 1], [*range(8, 0, -1)]),
    "zb-2p": ([7, 5, 3, 1], [*range(15, 0, -2)]), "zb-h2": ([7, 5, 3, 1], [*range(15, 0, -2)]), "zbv": ([8] * 4, [16] * 8),
    "v-half": ([6] * 4, [10] * 8), "v-min": ([4] * 4, [7, 7] + [8] * 6), "dualpipe": ([4, 5, 5, 4], [8, 8, 8, 9, 9, 8, 8, 8]),
    "dualpipev": ([8, 8, 8, 9], [16] * 7 + [17]), "loop-bfs": ([16] * 4, [32] * 8), "gpipe": ([8] * 4, [16] * 8),
}  # fmt: skip


@pytest.mark.parametrize("name", FLIGHT)
def test_chunks_in_flight(name: str) -> None:
    for ranks, expected in zip((4, 8), FLIGHT[name], strict=True):
        assert in_flight(make_schedule(name, ranks, 2 * ranks)) == expected
    if name == "interleaved":
        assert in_flight(make_schedule(name, 4, 8, 4)) == [19, 17, 15, 13]


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Schedule, Times]:
    name = draw(st.sampled_from(sorted(all_schedules())))
    family = get_schedule(name)
    ranks = draw(st.integers(1, 5)) * (2 if family.two_way else 1)
    chunks = draw(st.integers(1, 3))
    most = draw(st.integers(1, 3))
    batches = {"dualpipe": 2 * ranks + 2 * most, "dualpipev": 2 * ranks + most}.get(name, ranks * most if not family.chunks else most * 2)
    stages = family.stages(ranks, chunks)
    lists = st.lists(st.integers(1, 20), min_size=stages, max_size=stages).map(tuple)
    times = Times(draw(lists), draw(lists), draw(lists), draw(st.integers(0, 5)))
    return name, make_schedule(name, ranks, batches, chunks, times=times), times


@given(cases())
@settings(max_examples=60, deadline=None)
def test_any_schedule_keeps_every_micro_batch_and_gives_all_activations_back(case: tuple[str, Schedule, Times]) -> None:
    """`make_schedule` checks one F and one B (or I and W) for every stage; here orders run, and times stay between their bounds."""
    _, schedule, times = case
    done, bubbles = replay_schedule(schedule, times)
    total = schedule.microbatches * schedule.directions * sum(map(sum, times[:3]))
    assert sum(bubbles.work) == total
    one = sum(times.forward) + sum(times.dgrad)
    assert max(*bubbles.work, one) <= bubbles.makespan <= total + 2 * times.hop * len(done.end)
    for slots in schedule.slots:
        held = sum((cell.kind == "F") - (cell.kind in "BI") for slot in slots for cell in slot)
        assert held == 0
    assert all(chunks <= schedule.microbatches * schedule.stages for chunks in in_flight(schedule, "W"))


@given(cases())
@settings(max_examples=30, deadline=None)
def test_replay_equals_a_clock_that_ticks(case: tuple[str, Schedule, Times]) -> None:
    """An independent reader of the same lists: at every tick each free rank starts its next slot if its inputs have arrived."""
    _, schedule, times = case
    done, _ = replay_schedule(schedule, times)
    assert ticked(schedule, times) == done.end


def ticked(schedule: Schedule, times: Times) -> list[float]:
    home = {(cell.stage, cell.direction): rank for rank, slots in enumerate(schedule.slots) for slot in slots for cell in slot}
    ends: list[list[float]] = [[] for _ in schedule.slots]
    known: dict[tuple[str, int, int, int], float] = {}
    clock = 0.0
    while any(len(end) < len(slots) for end, slots in zip(ends, schedule.slots, strict=True)):
        for rank, slots in enumerate(schedule.slots):
            if len(ends[rank]) == len(slots) or (ends[rank] and ends[rank][-1] > clock):
                continue
            slot = slots[len(ends[rank])]
            arrivals = [_arrival(cell, rank, schedule, home, known, times.hop) for cell in slot]
            if all(arrival is not None and arrival <= clock for arrival in arrivals):
                ends[rank].append(clock + times.of(slot))
                known.update(((cell.kind, cell.stage, cell.microbatch, cell.direction), ends[rank][-1]) for cell in slot)
        clock += 1
        assert clock < 1e5
    return [end for row in ends for end in row]


def _arrival(
    cell: Cell, rank: int, schedule: Schedule, home: dict[tuple[int, int], int], known: dict[tuple[str, int, int, int], float], hop: float
) -> float | None:
    if cell.kind == "W":
        return known.get(("I", *cell[1:3], cell.direction))
    stage = cell.stage + (-1 if cell.kind == "F" else 1)
    if cell.kind != "F" and ("F", *cell[1:3], cell.direction) not in known:
        return None
    if not 0 <= stage < schedule.stages:
        return 0
    found = [known.get((kind, stage, cell.microbatch, cell.direction)) for kind in ("F" if cell.kind == "F" else "BI")]
    end = next((one for one in found if one is not None), None)
    return None if end is None else end + (hop if home[stage, cell.direction] != rank else 0)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_closed_forms_of_equal_stages(ranks: int, rounds: int, chunks: int, f: int, i: int, w: int) -> None:
    n = ranks * rounds
    whole = f + i + w
    for name in ("gpipe", "1f1b"):
        assert replay_schedule(make_schedule(name, ranks, n), equal_times(ranks, f, i, w))[1].makespan == (n + ranks - 1) * whole
    loops = replay_schedule(make_schedule("interleaved", ranks, n, chunks), equal_times(ranks * chunks, f, i, w))[1]
    assert loops.makespan == (n * chunks + ranks - 1) * whole
    f, i = f + w, i + w  # ZB-H1's formula needs weight gradients that are no longer than the other two
    late = replay_schedule(make_schedule("zb-h1", ranks, 2 * n), equal_times(ranks, f, i, w))[1]
    assert late.makespan == 2 * n * (f + i + w) + (ranks - 1) * (f + i - w)


def test_pangu_bubbles_halve_with_two_chunks() -> None:
    """Pangu Ultra MoE's printed bubbles 18.99 % and 10.49 %: 16 ranks, 64 micro-batches, 1 and 2 chunks."""
    shares = []
    for chunks in (1, 2):
        bubbles = replay_schedule(make_schedule("interleaved", 16, 64, chunks), equal_times(16 * chunks))[1]
        shares.append(round(100 * bubbles.of_least_busy / bubbles.makespan, 2))
    assert shares == [18.99, 10.49]


@pytest.mark.parametrize(
    ("name", "ranks", "batches", "message"),
    [
        ("1f2b", 2, 2, "schedule '1f2b': unknown.*1f1b"),
        ("1f1b", 0, 2, "found 0 ranks, expected 1 or more"),
        ("dualpipe", 3, 8, "found 3 ranks and 8 micro-batches, expected even numbers"),
        ("dualpipev", 4, 6, "found 6 micro-batches on 4 ranks, expected at least 8"),
    ],
)
def test_what_a_family_cannot_serve_is_one_line(name: str, ranks: int, batches: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_schedule(name, ranks, batches)


@pytest.mark.parametrize(("batches", "group"), [(9, 9), (13, 13), (16, 8), (20, 10), (22, 11), (26, 13), (28, 7)])
def test_groups_of_micro_batches_are_the_smallest_equal_ones(batches: int, group: int) -> None:
    """22 on 7 ranks were refused as if no groups of 7 or more were equal, and 13, whose double is 26, by the line on what would help."""
    order = make_schedule("interleaved", 7, batches, 2)
    assert [cell.chunk for slot in order.slots[0] for cell in slot if cell.kind == "F"].index(1) == group


def test_an_order_that_cannot_run_names_who_waits() -> None:
    f, b = Cell("F", 0, 0), Cell("B", 0, 0)
    with pytest.raises(ConfigError, match=r"found 2 nodes that never start \('0B0' of rank 0 waits for '0F0' of rank 0\)"):
        replay_schedule(Schedule("own", 1, 1, 1, (((b,), (f,)),)), equal_times(1))
    with pytest.raises(ConfigError, match=r"stage 0, micro-batch 0, direction 0: found 1 F, 0 B, 0 I, 0 W, expected 1 F and either 1 B"):
        Schedule("own", 1, 1, 1, (((f,),),)).check()
    whole = make_schedule("1f1b", 2, 4)
    with pytest.raises(ConfigError, match="schedule 1f1b: found stage 1 as the first of rank 0, expected stage 0"):
        Schedule("1f1b", 2, 4, 1, whole.slots[::-1]).check()


def test_times_of_another_number_of_stages() -> None:
    with pytest.raises(ConfigError, match="found times of 3 stages, expected 4"):
        make_schedule("1f1b", 4, 4, times=equal_times(3))


def test_a_slow_first_rank_warms_up_no_less_than_its_successor() -> None:
    times = Times((2, 1, 1, 1), (1, 1, 1, 4), (1, 1, 1, 1), 0)
    make_schedule("zb-2p", 4, 8, times=times).check()
