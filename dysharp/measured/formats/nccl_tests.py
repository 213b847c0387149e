"""Output of nccl-tests, through mpirun and with NCCL's own lines between or without: one row per size, out of place.

A test that found wrong values is refused as a whole. Results that nobody checked (N/A) are marked and judge no constant.
Without its first line (`Collective test starting`, from 2.17 on) a test says by its factor of bus bandwidth whether it is an all-reduce or a
reduce-scatter; all-gather and all-to-all print alike, so the name is asked for.
"""

import re
from collections.abc import Mapping

from dysharp.base import ByName, Cells
from dysharp.measured.formats.log import TAG, Log, measurement, number

NAME = "output of nccl-tests"
RANK = re.compile(r"#\s+Rank\s+\d+\s.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.+)")
STARTS = re.compile(r"# Collective test starting: (\w+)_perf")
FIELDS = 8
"""Time, algorithm and bus bandwidth, and wrong values, out of place and in place."""
KNOWN = ("hardware", "op", "gpus", "nodes", "system")
WRONG, UNCHECKED = "nccl-tests found wrong values", "WEAK: nccl-tests did not check the values (N/A)"


def fits(text: str) -> bool:
    """Whether a text has a table or the first lines of nccl-tests."""
    return "# nThread" in text or ("busbw" in text and "algbw" in text)


def read(text: str, given: Mapping[str, str]) -> Log:
    """Every test of a text."""
    rows: list[Cells] = []
    missing: dict[str, None] = {}
    op, named, ranks, table = "", "", list[tuple[str, str]](), list[list[str]]()
    for line in [*TAG.sub("", text).splitlines(), "# nThread"]:
        fields = line.split()
        if found := STARTS.search(line):
            named = found[1]
        elif "# nThread" in line or "# Out of bounds" in line:
            rows += _rows(len(rows), table, op, ranks, "FAILED" in line, given, missing)
            op, named, table = named or op, "", []
            ranks = [] if "# nThread" in line else ranks
        elif found := RANK.search(line):
            ranks.append((found[1], found[2].strip()))
        elif len(fields) in (FIELDS + 3, FIELDS + 4, FIELDS + 5) and fields[0].isdigit() and fields[1].isdigit():
            table.append(fields)
    return Log(NAME, rows, tuple(missing), KNOWN)


def _rows(
    first: int, table: list[list[str]], op: str, ranks: list[tuple[str, str]], failed: bool, given: Mapping[str, str], missing: dict[str, None]
) -> list[Cells]:
    """Rows of one test. `missing` gets the names that neither the test nor `given` says."""
    if not table:
        return []
    gpus = len(ranks) or int(given.get("gpus") or 0)
    op = op or _op(table[-1], gpus) or given.get("op", "")
    hardware = given.get("hardware") or (f"{gpus}x{ranks[0][1]}" if ranks else "")
    absent = {"gpus": gpus, "op": op, "hardware": hardware}
    missing.update(dict.fromkeys(name for name, value in absent.items() if not value))
    config: ByName = {"gpus": gpus, "nodes": len({host for host, _ in ranks}) or given.get("nodes"), "regime": "chained"}
    cells = {"kind": f"nccl_{op}", "system": given.get("system", "NCCL"), "hardware": hardware, "metric": "latency", "unit": "us"}
    wrong = failed or any(number(fields[-5]) for fields in table)
    marks = {"refused": WRONG if wrong else "", "quality": UNCHECKED if number(table[-1][-5]) is None else ""}
    found = [(int(fields[0]), number(fields[-FIELDS])) for fields in table]
    return [
        measurement(first + n, "nccl-tests", cells, config | marks | {"bytes": size}, us)
        for n, (size, us) in enumerate(((size, us) for size, us in found if size and us), start=1)
    ]  # fmt: skip


def _op(fields: list[str], gpus: int) -> str:
    """The reduction whose bus factor a row prints; "" where several print alike."""
    rates = [number(one) for one in fields[-FIELDS + 1 : -FIELDS + 3]]
    if "sum" not in fields or not all(rates) or gpus < 2:
        return ""
    factor = (rates[1] or 0) / (rates[0] or 1) * gpus / (gpus - 1)
    return next((op for op, expected in (("all_reduce", 2.0), ("reduce_scatter", 1.0)) if abs(factor - expected) < 0.02), "")
