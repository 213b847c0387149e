"""What every family makes of some packaged measurements, and of the same with one cell or key changed: case, times, or the reason for none."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from dysharp.base.errors import DysharpError
from dysharp.measured.family import Parsed, all_families, family_of, parse
from dysharp.measured.measurements import Measurement, Unsupported, read_calls, read_measurements, read_operators
from dysharp.measured.predictions import ClosedForms
from dysharp.specs.fitted import fitted_values
from tests.measured.csv_lines import VLLM, allreduce_line, line, read
from tests.stored_values import Cases, Table, checksum
from tests.stored_values import read as stored

STORED = Table(__file__, close=1e-8, zero=1e-8)
Numbers = dict[str, float]
MOST, MOST_CLOSED = 16, 32
"""Measurements of a family in the table: with Programs, and of closed forms alone."""
VARIED = 2
"""Measurements of a family of which every cell and key is changed."""
NORMS = [
    line(f"norm-{n}", kind=kind, system="vLLM", hardware="8xH100", config={"gpus": 8, "bytes": 3 << 17, "timing": timing})
    for n, (kind, timing) in enumerate(
        (("rms_norm", "eager"), ("allreduce_rms_norm_fused", "cuda graph"), ("allreduce_rms_norm", "eager"), ("allreduce_rms_norm", "graph"))
    )
]
"""Of the family without packaged measurements."""
CONTEXT = {"batch": 3, "q_len": 700, "heads": 24, "kv_heads": 6, "head_dim": 128, "dtype": "bfloat16", "timing": "cuda graph"}
BLOCK = {"layers": 2, "dtype": "bf16", "model": "qwen3-30b"}
EXTRA = [
    line("extra-1", kind="attention_context", system="TensorRT-LLM", hardware="A100-SXM", config=CONTEXT),
    allreduce_line(VLLM, "8xB200", id_="extra-2", bytes=1 << 16, kernel="custom, eager"),
    allreduce_line(VLLM, "8xB200", id_="extra-3", bytes=1 << 16),
    *(
        line(f"block-{way}", kind="decoder_block", system="PyTorch", hardware="H100", config=BLOCK | {"batch": 2, "tokens": 2048, "pass": way})
        for way in ("forward", "forward and backward")
    ),
    *(
        line(f"step-{gpu}", kind="decode_step", system="PyTorch", hardware=gpu, config=BLOCK | {"batch": 16, "context": 4096})
        for gpu in ("B200", "A100-SXM")
    ),
]
"""Others that no packaged measurement is like."""
POWERS = (3, 5, 7, 9, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22, 23, 24, 26)
ABSENT = object()


# ---- which measurements


def features(m: Measurement, entry: Parsed | str) -> set[tuple[str, Any]]:
    """What a measurement has that others may not have."""
    if isinstance(entry, str):
        return {("reason", entry), ("where", (entry, m.system.split()[0], m.config.get("kernel")))}
    found: set[tuple[str, Any]] = {("unit", m.unit), ("metric", m.metric), ("kind", m.kind), ("gpu", entry.case.gpu)}
    found |= {
        ("engine", (m.kind, m.system.split()[0], entry.case.gpu)),
        ("kernel", (m.config.get("kernel"), m.config.get("kv_dtype"), entry.case.gpu)),
    }
    for field in fields(entry.case):
        value = getattr(entry.case, field.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found |= {(field.name, "0" if not value else "1" if value == 1 else "more")}
        elif field.name != "shape":
            found.add((field.name, value))
    found |= {(key, value) for key, value in m.config.items() if isinstance(value, (str, bool))}
    return found | {("key", key) for key in m.config}


def size(m: Measurement, entry: Parsed | str) -> float:
    """Cheap measurements first."""
    tokens = getattr(entry.case, "tokens", 0) if isinstance(entry, Parsed) else 0
    return float(getattr(entry.case, "gpus", 1) * tokens if isinstance(entry, Parsed) else 0)


def outcome(m: Measurement) -> Parsed | str:
    """The measurement's case, or why it has none."""
    try:
        return parse(m, family_of(m))
    except (Unsupported, DysharpError) as reason:
        return str(reason)


def chosen(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """By family: the measurements that together have most features, one after the other."""
    groups: dict[str, list[tuple[Measurement, Parsed | str, set[tuple[str, Any]]]]] = {}
    for m in measurements:
        family, entry = family_of(m), outcome(m)
        if family is not None:
            groups.setdefault(family.name, []).append((m, entry, features(m, entry)))
    found: dict[str, list[Measurement]] = {}
    for name, group in groups.items():
        group.sort(key=lambda one: (size(one[0], one[1]), one[0].id))
        seen: set[tuple[str, Any]] = set()
        while len(found.setdefault(name, [])) < (MOST if name in with_programs() else MOST_CLOSED):
            best = max(group, key=lambda one: len(one[2] - seen) + 1000 * (one[0].id.startswith("extra") and one[0] not in found[name]))
            if not best[2] - seen:
                break
            seen |= best[2]
            found[name].append(best[0])
    return found


# ---- what is made of them


def others(value: Any, seen: Iterable[Any]) -> list[Any]:
    """Values in place of a value of `config_json`: none, limits and powers of two, and what other measurements of the family have."""
    if isinstance(value, bool):
        return [ABSENT, not value]
    if isinstance(value, (int, float)):
        numbers = [0, 1, 3, value - 1, value + 1, value / 2, 2 * value, 4 * value, 1.5 * value, *(1 << n for n in POWERS)]
        return [ABSENT, "word", *numbers]
    words = sorted({one for one in seen if isinstance(one, str) and one != value})
    return [ABSENT, 1, "word", *words[:8]]


def changes(m: Measurement, family: list[Measurement]) -> Iterator[tuple[str, list[Measurement]]]:
    """(cell or key, the measurement with other values there)."""
    for cell in ("kind", "system", "hardware", "metric", "unit"):
        words = sorted({getattr(one, cell) for one in family} - {getattr(m, cell)})[:10]
        words += {"unit": ["ms", "us", "GB/s", "TFLOPS"], "hardware": ["8xB200", "4xMI300X"]}.get(cell, ["word"])
        yield cell, [replace(m, **{cell: word}) for word in words]
    for key, value in m.config.items():
        new = others(value, (one.config.get(key) for one in family))
        kept = {k: v for k, v in m.config.items() if k != key}
        yield key, [replace(m, config=kept if one is ABSENT else kept | {key: one}) for one in new]
    lacking = sorted({key for one in family for key in one.config} - m.config.keys())[:12]
    for key in lacking:
        words = sorted({str(one.config[key]) for one in family if key in one.config})[:4]
        values = [next(one.config[key] for one in family if str(one.config.get(key)) == word) for word in words]
        yield f"+{key}", [replace(m, config=dict(m.config) | {key: one}) for one in values]


def numbers(entries: list[Parsed | str]) -> list[float]:
    """A checksum of each outcome: its case with its effort, and its time by the closed form."""
    cases = [entry for entry in entries if isinstance(entry, Parsed)]
    closed = iter(ClosedForms(cases).values(fitted_values()).tolist())
    return [checksum((entry.family.name, entry.case, next(closed), entry.case.effort()) if isinstance(entry, Parsed) else entry) for entry in entries]


def cases_of(measurements: list[Measurement]) -> Numbers:
    """The numbers of a family that need no Programs: of every measurement, and of some with every cell and key changed."""
    entries = [outcome(m) for m in measurements]
    with np.errstate(all="ignore"):
        found = {f"{m.id} row": number for m, number in zip(measurements, numbers(entries), strict=True)}
        varied = [m for m, entry in zip(measurements, entries, strict=True) if isinstance(entry, Parsed)][:VARIED]
        for m in varied:
            asked = list(changes(m, measurements))
            flat = numbers([outcome(one) for _, ones in asked for one in ones])
            for key, ones in asked:
                found[f"{m.id} {key}"] = sum((1 + n / 97) * one for n, one in enumerate(flat[: len(ones)]))
                del flat[: len(ones)]
    return found


def with_programs() -> list[str]:
    """Families that Programs predict."""
    return [name for name, family in all_families().items() if family.program_us is not None]


def packaged() -> list[Measurement]:
    """All measurements of the package, and of the families that have none."""
    return [*read_measurements(), *read_operators(), *read_calls(), *read(*NORMS, *EXTRA)]


@functools.cache
def known() -> dict[str, list[Measurement]]:
    """By family: the measurements of the table."""
    found, rows = {m.id: m for m in packaged()}, stored(STORED.path)
    return {name: [found[one[:-4]] for one in rows.get(name, ()) if one.endswith(" row")] for name in all_families()}


@functools.cache
def anew() -> dict[str, list[Measurement]]:
    """Those that a new table has."""
    return chosen(packaged())


CASES: Cases = {name: (lambda name=name: cases_of(known()[name])) for name in all_families()}  # type: ignore[misc]
ANEW: Cases = {name: (lambda name=name: cases_of(anew()[name])) for name in all_families()}  # type: ignore[misc]
