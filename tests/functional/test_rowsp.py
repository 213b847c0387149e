"""A layer of integers over encoded row stores: any order of packets and any sizes of the units give the dense layer."""

from __future__ import annotations

import numpy as np
import pytest

from dysharp.base.errors import EmulationMismatch, IsaError
from tests.functional.rowsp import MallocId, RowspMachine, UnitSizes

GPUS, EXPERTS, TOKENS, TOPK, HIDDEN, TILE = 3, 6, 5, 2, 40, 4
RECORD = 32
SIZES = {
    "usual": UnitSizes(),
    "one row in the RAT": UnitSizes(rat_entries=1, rat_banks=1),
    "one line per partition": UnitSizes(partition_entries=1),
    "expired timers": UnitSizes(timer=0),
    "everything small": UnitSizes(rat_entries=1, rat_banks=2, partition_entries=2, timer=1),
}


def expert(e: int, x: np.ndarray) -> np.ndarray:
    """Both GEMMs of an expert, on integers."""
    return np.cumsum(x * (e + 2), axis=1) + x[:, ::-1] * x


def layer(sizes: UnitSizes, seed: int, *, rows: int = GPUS * TOKENS, choose: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(emulated, dense) outputs `[tokens of all GPUs, HIDDEN]`."""
    rng = np.random.default_rng(seed)
    n = GPUS * TOKENS
    x, gate = rng.integers(-9, 10, (n, HIDDEN)).astype(np.int32), rng.integers(1, 5, (n, TOPK))
    chosen = np.array([rng.permutation(EXPERTS)[:TOPK] for _ in range(n)]) if choose is None else choose
    machine, local = RowspMachine(GPUS, seed, sizes), EXPERTS // GPUS
    region = [machine.rowsp_malloc(e // local, rows, 4 * HIDDEN, TILE, record_bytes=RECORD) for e in range(EXPERTS)]
    for token in rng.permutation(n).tolist():
        source = token // TOKENS
        row_id = token % TOKENS * GPUS + source  # ranks in turn, in token order
        for slot, e in enumerate(chosen[token].tolist()):
            machine.st_rowsp(source, region[e], row_id, 0, x[token].tobytes())
            record = np.array([source, token % TOKENS, slot, gate[token, slot]], np.int32).tobytes()
            machine.st_rowsp(source, region[e], row_id, 4 * HIDDEN, record.ljust(RECORD, b"\0"), nop=True)
    for source in range(GPUS):
        mine = chosen[source * TOKENS : (source + 1) * TOKENS]
        for e in range(EXPERTS):
            machine.announce(source, region[e], int((mine == e).sum()))
    machine.run()
    _compute(machine, region)
    machine.run()
    found = np.array([machine.plain[g].get(i, 0) for g in range(GPUS) for i in range(TOKENS * TOPK * 4 * HIDDEN)], np.uint8)
    returned = found.view(np.int32).reshape(n, TOPK, HIDDEN)
    wide = x.astype(np.int32)
    dense = np.stack([np.stack([expert(e, wide[t : t + 1])[0] for e in chosen[t]]) for t in range(n)])
    return (gate[:, :, None] * returned).sum(axis=1), (gate[:, :, None] * dense).sum(axis=1)  # scaling at the origin


def _compute(machine: RowspMachine, region: list[MallocId]) -> None:
    """The consumer kernels: GEMMs of released tiles, then ordinary stores to the origins that the records name."""
    assert {(r, tile) for r, tile, _ in machine.ready} == set(machine.returnable)
    for at, tile, rows in machine.ready:
        e = region.index(at)
        for place in range(tile * TILE, tile * TILE + rows):
            held = machine.row(at, place)
            row = np.frombuffer(held[: 4 * HIDDEN], np.int32)[None]
            rank, token, slot, _ = np.frombuffer(held[4 * HIDDEN : 4 * HIDDEN + 16], np.int32).tolist()
            machine.st(at.gpu, rank, (token * TOPK + slot) * 4 * HIDDEN, expert(e, row)[0].astype(np.int32).tobytes())


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("seed", [0, 1])
def test_integers_equal_the_dense_layer(name: str, seed: int) -> None:
    found, dense = layer(SIZES[name], seed)
    assert (found == dense).all()


def test_all_rows_to_one_expert() -> None:
    """The other experts get no row: their tiles are reclaimed, and nothing hangs."""
    choose = np.tile([[4, 5]], (GPUS * TOKENS, 1))
    found, dense = layer(SIZES["everything small"], 3, choose=choose)
    assert (found == dense).all()


def test_a_region_that_is_too_small_traps() -> None:
    choose = np.tile([[4, 5]], (GPUS * TOKENS, 1))
    with pytest.raises(EmulationMismatch, match=r"GPU 2: region [01]: found row \d+ beyond its capacity, expected at most 8 rows"):
        layer(SIZES["usual"], 0, rows=8, choose=choose)


@pytest.mark.parametrize(
    ("source", "offset", "text"), [(GPUS, 0, "expected 0 to 2"), (0, 40, "bytes 40 to 104, expected 0 to 96"), (0, -1, "bytes -1")]
)
def test_stores_outside_the_machine_or_the_row_are_refused(source: int, offset: int, text: str) -> None:
    machine = RowspMachine(GPUS)
    region = machine.rowsp_malloc(1, 4, 64, 2, record_bytes=RECORD)
    with pytest.raises(IsaError, match=text):
        machine.st_rowsp(source, region, 0, offset, bytes(64))
    assert machine.packets == 0


def test_merged_stores_are_whole_packets() -> None:
    """Stores of 16 B merge to packets of 128 B; with one line per partition and mixed rows they do not."""
    sent = {}
    for entries in (64, 1):
        machine = RowspMachine(2, 0, UnitSizes(partition_entries=entries, timer=10_000))
        rows = machine.rowsp_malloc(1, 8, 512, 4)
        for offset in range(0, 512, 16):
            for row in range(8):
                machine.st_rowsp(0, rows, row, offset, bytes([row]) * 16)
        machine.run()
        sent[entries] = machine.packets
        assert {machine.row(rows, place) for place in range(8)} == {bytes([row]) * 512 for row in range(8)}
    assert sent == {64: 32, 1: 256}
