"""Regression values: what commands print and write of points that `_run` gives without a run, and screens of hardware, traces and progress."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from dysharp.cli import progress_bar, reproduce, rtl, trace
from dysharp.cli.app import cli
from dysharp.cli.calibrate import _print_calibration
from dysharp.cli.emulate import _print_emulation
from dysharp.cli.lint import _print_lint
from dysharp.cli.listing import _cluster_keys, listing
from dysharp.runs.point import Point
from dysharp.runs.progress import Step
from dysharp.silicon.rtl.blocks import BLOCKS, Pin
from tests.figures.made_rows import made_rows
from tests.show.held import Lines, digest, lines_of, page_lines, plain, printed, stored_lines
from tests.show.made_results import made_advice, made_comparison, made_row, made_steps, made_timeline, window

FOLDER = Path(__file__).with_name("made_commands")
VERSION = r'model.version"?:? "?\w+"?'
"""The words on screens and the field of JSON."""
SWEEP = """
[points]
systems = ["deepep", "dysharp"]
models = ["S-8"]
gpus = [4, 8]
tokens = 32
"""


def given(points: Iterable[Point], _store: Any, _jobs: int, what: str) -> tuple[dict[Point, dict[str, Any]], dict[Point, str]]:
    """Rows of all points; in a figure, one of nvls fails."""
    rows = made_rows(points)
    for point, row in rows.items():
        whole = made_row(point.system, model=point.model, cluster=point.cluster, gpus=point.gpus or 32, seed=point.seed).to_dict()
        row.update({key: value for key, value in whole.items() if key not in row} if "time_us" in row else {})
    failed = [p for p in rows if p.system == "nvls" and what != "tornado"][:1]
    return {p: row for p, row in rows.items() if p not in failed}, dict.fromkeys(failed, "made reason")


def commands(*asked: str) -> Lines:
    """Exit code and output of a command, and the texts that it wrote; DIR is a new folder, SWEEP a sweep file."""
    with tempfile.TemporaryDirectory() as name, patch.object(reproduce, "_run", given):
        folder = Path(name)
        (folder / "sweep.toml").write_text(SWEEP)
        words = [word.replace("DIR", name).replace("SWEEP", f"{name}/sweep.toml") for word in asked]
        done = CliRunner().invoke(cli, [*words, "--store", f"{name}/store"])
        yield f"$ dysharp {' '.join(asked)}: {done.exit_code}"
        shown = plain(json.loads(done.stdout)) if "--json" in asked else done.output.splitlines()
        told = [*shown, *([f"error: {done.exception}"] if done.exit_code and done.exception else [])]
        for file in sorted(folder.rglob("*.*")):
            if file.suffix in (".md", ".csv", ".html", ".jsonl"):
                text = file.read_text().replace(name, "DIR")
                told += [f"== {file.relative_to(folder)}", *([*page_lines(text)][:30] if file.suffix == ".html" else text.splitlines()[:15])]
            elif file.suffix == ".svg":
                told += [f"== {file.relative_to(folder)}"]
        yield from (re.sub(VERSION, "VERSION", line.replace(name, "DIR"))[:120] for line in told)


def block(name: str, *, bare: bool = False) -> Any:
    """Hardware with everything that can be asked for, or with nothing."""
    pytest.importorskip("amaranth")
    from dysharp.silicon.rtl.check import Checked
    from dysharp.silicon.rtl.formal import Proven
    from dysharp.silicon.rtl.synthesis import GE, Synthesized
    from dysharp.silicon.rtl.yosys import MemoryBits

    cost = Synthesized(dict.fromkeys(GE, 300 + len(name)), [MemoryBits("rows", 96, 33, 1, 1), MemoryBits("ports", 12, 40, 3, 1)], 4096, 17, 3)
    checked = [({"depth": 4}, Checked(20, 900, {"hit": 7}, 9)), ({"depth": 6}, Checked(25, 1100, {"hit": 3}, 12))]
    proven = [Proven(name, "a promise", "an assumption", 0, True), Proven(name, "another", "", 12, False)]
    seen = SimpleNamespace(model="S-8", routing="uniform", steps=[1, 2, 3], results=5, bypasses=2, evictions=1)
    usual = {"block": name, "meaning": f"what {name} is", "cluster": "paper-gh200-nvl32", "parameters": {"row_bits": 12}, "interface": "made pins",
             "pins": [Pin("a", "in", 3), Pin("b", "out", 5)], "memories": cost.memories}  # fmt: skip
    more = {"cost": cost, "checked": checked, "proven": proven, "library_kge": 1.25, "trace": seen, "path": "a.v", "testbench": "t.v"}
    return SimpleNamespace(**usual, **(dict.fromkeys(more) | {"checked": [], "proven": []} if bare else more))


def hardware() -> Lines:
    yield from printed(rtl._print_hardware, block("al-tlb"))
    yield from printed(rtl._print_hardware, block("al-tlb", bare=True))
    every = [block(name) for name in BLOCKS]
    yield from printed(rtl._print_blocks, every)
    yield from printed(rtl._print_blocks, [block(name, bare=True) for name in ("rpm", "aau")])
    faults = {"comparison": (3, 5), "proofs": (2, 4)}
    with (
        patch("dysharp.cli.rtl.load_block"),
        patch.dict("sys.modules", {"dysharp.testing.block_faults": SimpleNamespace(found=lambda _: faults)}),
    ):
        yield from printed(rtl._print_faults, ["al-tlb", "rpm"], False)
        yield from printed(rtl._print_faults, ["rpm"], True)


def timed() -> Any:
    from dysharp.api.timed import Timed

    return Timed(window(made_row("deepep")), made_timeline(), None)  # type: ignore[arg-type]


def progress() -> Lines:
    """Times in words, and the lines of work of 60 s, whose clock is made."""
    yield " ".join(f"{s:g}:{progress_bar._in_words(s)}" for s in (0, 1.6, 119, 119.9, 120, 121, 7199, 7200, 9000))
    yield " ".join(f"{share:g},{s:g}:{progress_bar._seconds_left(share, s)}" for share in (0.019, 0.02, 0.5, 1.0) for s in (1.9, 2.0, 30.0))
    clock = SimpleNamespace(now=100.0)
    lines: list[str] = []
    with (
        patch("dysharp.cli.progress_bar.time.monotonic", lambda: clock.now),
        patch("dysharp.cli.progress_bar.click.echo", lambda text, err: lines.append(text)),
    ):
        with progress_bar.bar("points") as update:
            for after, done, share in ((0, 2, None), (9.5, 3, 0.25), (10, 4, None), (19.5, 5, None), (20, 6, 0.75), (31, 8, None), (60, 0, 1.0)):
                clock.now = 100.0 + after
                update(done, 8 if done else 0, f"point {done}", share)
        with progress_bar.progress_bar() as report:
            report(Step("made", 1, 1, "header", header=("a made header",)))
            report(Step("made", 1, 1, "compiling", 0, 0))
            clock.now += 12
            report(Step("made", 1, 1, "compiling", 3, 0))
            for index, count in ((1, 1), (2, 3)):
                clock.now += 11
                report(Step("made", index, count, "engine", 4, 9))
    yield from lines


def calibration() -> Any:
    def errors(n: int, median: float) -> Any:
        return SimpleNamespace(n=n, median_ape=median, p90_ape=2.5 * median)

    from dysharp.api.calibration import Calibration
    from dysharp.specs.fitted import fitted

    first, second, third = list(fitted().values())[:3]
    names = list(fitted())[:3]
    rows = [SimpleNamespace(family="layer", shapes=7, before=errors(12, 9.5), after=errors(12, 4.25), held_out=None)]
    skipped = [(SimpleNamespace(id=f"row-{i}", kind="k"), "why" if i < 4 else "other") for i in range(5)]
    fit = SimpleNamespace(
        errors=rows, before=dict(zip(names, (2.0, 3.0, 4.0), strict=True)), skipped=skipped, refused={"a": "few rows", "b": "few rows",
            "c": "no rows"},
        fitted=dict(zip(names, (first.low, (second.low + second.high) / 2, third.high), strict=True)),
    )  # fmt: skip
    return Calibration(fit, "mine.toml", "mine")


def emulation(holds: bool) -> Any:
    return SimpleNamespace(
        system="dysharp", holds=holds, max_abs_error=0.00123, dump=["a packet"], backward=not holds, block="made", gpus=4, tokens_per_gpu=12,
            dtype="bf16",
        path="packet", order="made", reference="torch", max_rel_error=0.0456, bound=0.05, exact=holds, packets={"cut": 9} if holds else {},
            flits={"up": 7},
        tables={"al_tlb": {"hits": 3, "misses": 2, "merged": 4}}, injected={"drop": 3, "delay": 0}, not_injected={"delay": "no packet"},
        rounding=[("rows of Dispatch", "nvfp4")] if holds else [],
    )  # fmt: skip


def lists() -> Lines:
    """Rows of lists whose things are stated elsewhere: one machine, one model, keys of a cluster, a figure, a few options."""
    wanted = {"clusters": ("paper-gh200-nvl32", "hw-dgx-h100"), "models": ("S-8",), "figures": ("fig2", "hub-area"), "systems": ("deepep",),
              "collectives": ("nccl",), "options": ("deepep.n_sm", "dysharp.combine_window", "fabric.al_entries",
                  "machine.vcs_per_class")}  # fmt: skip
    for what, names in wanted.items():
        yield from (
            f"{what}: {json.dumps({k: v for k, v in row.items() if k not in ('source', 'reason')})}" for row in listing(what) if row["name"] in names
        )
    for what in ("blocks", "routings", "sub-layers"):
        yield from (f"{what}: {json.dumps(row)}" for row in listing(what))
    yield from (f"key: {row['name']} {row['type']} {row['range']} {row['default']!r}" for row in _cluster_keys())


ANSWERS: dict[str, tuple[str, Callable[[], Any], tuple[str, ...]]] = {
    "trace": ("dysharp.api.trace", timed, ("deepep", "--plot", "DIR/a.svg")),
    "step": ("dysharp.api.step", made_steps, ("made", "--layout", "pp=3", "--plot", "DIR/a.svg", "--report", "DIR/a.html")),
    "compare": ("dysharp.api.compare", lambda: made_comparison("paper"),
                ("--plot", "DIR/a.svg", "--gpus", "4", "--tokens", "16", "--report", "DIR/a.html")),
    "advise": ("dysharp.api.advise", lambda: made_advice("ranked"), ("made", "--details", "--report", "DIR/a.html", "--tokens", "16")),
}  # fmt: skip
"""{command: what gives its answer, the answer, what is asked}."""


def answered() -> Lines:
    """What commands print of an answer, as digests of stdout and stderr, and the files that they write."""
    for command, (where, answer, asked) in ANSWERS.items():
        for more in ((), ("--json",)):
            with tempfile.TemporaryDirectory() as name, patch(where, lambda *_, answer=answer, **__: answer(), create=True):
                done = CliRunner().invoke(
                    cli, [command, *(word.replace("DIR", name) for word in (*asked, *more)), *(["--fresh"] * (command != "trace"))]
                )
                out = " ".join(plain(json.loads(done.stdout))) if more else done.stdout
                texts = [digest(re.sub(VERSION, "VERSION", text.replace(name, "DIR"))) for text in (out, done.stderr)]
                yield f"{command} {more}: {done.exit_code} {texts} {sorted(p.name for p in Path(name).iterdir())} {done.exception or ''}"


def checked() -> Any:
    layer = SimpleNamespace(layer=3)
    found = [
        SimpleNamespace(name=name, level=level, text=f"{name} text", advice=f"{name} advice") for name, level in (("dead", "look"), ("load", "note"))
    ]
    return SimpleNamespace(source="made", topk=3, layers=[layer, layer], n_experts=12, n_gpus=4, findings=found)


TEXTS: dict[str, Callable[[], Lines]] = {
    "reproduce": lambda: commands("reproduce", "fig16", "cais-fig13b", "--no-variants", "--pages", "DIR/pages", "--report", "DIR/a.md"),
    "reproduce-json": lambda: commands("reproduce", "fig17", "fig2", "--json", "--check", "-j", "2", "--direction", "fwd"),
    "reproduce-html": lambda: commands("reproduce", "fig17", "--report", "DIR/a.html", "--direction", "bwd"),
    "reproduce-windows": lambda: commands("reproduce", "windows", "--plot", "DIR/w.svg", "--models", "S-8"),
    "reproduce-tornado": lambda: [line for line in commands("reproduce", "--tornado", "--tokens", "96", "--report", "DIR/t.md")][:40],
    "reproduce-refused": lambda: [line for words in (
        (), ("fig2", "--tornado", "--direction", "bwd"), ("fig2", "--check", "--direction", "bwd"), ("fig2", "--plot", "DIR/a.svg"), ("fig17",
            "--models", "S-9"),
        ("--tornado", "--report", "DIR/a.html"), ("fig2", "--report", "DIR/a.html"), ("--tornado", "--tornado-of", "deepep"),
    ) for line in commands("reproduce", *words)],
    "sweep": lambda: commands("sweep", "SWEEP", "--csv", "DIR/a.csv", "--report", "DIR/a.html"),
    "hardware": hardware, "progress": progress, "lists": lists,
    "trace": lambda: [*printed(trace._print, timed(), None), *plain(timed().to_dict()["timeline"]), *map(str, (trace._tokens("x", "3,17"),
        trace._tokens("x", "2:5")))],
    "calibration": lambda: printed(_print_calibration, calibration()),
    "answers": answered,
    "lint": lambda: printed(_print_lint, checked()),
    "emulation": lambda: [*printed(_print_emulation, emulation(True)), *printed(_print_emulation, emulation(False))],
}  # fmt: skip


SLOW = ("answers", "lists", "reproduce-tornado")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in TEXTS])
def test_the_text_of_a_made_command(name: str) -> None:
    assert lines_of(TEXTS, name) == stored_lines(FOLDER, name)
