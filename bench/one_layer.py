"""One layer, one clock: every bar of that work with its number, from a clean clone.

    python bench/one_layer.py [--time]

Exits with 1 if a bar is missed. Draws are seeded, and every drawn row is counted. `--time` also times a first `compare`, from an empty cache.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from house import ROOT, counts
from house_runs import runs
from quantities import table

from dysharp.api.planning import plan
from dysharp.api.serving import serve
from dysharp.api.training import step
from dysharp.base.errors import ConfigError

SEED, DRAWN = 51, 20
EQUAL = 1e-9
"""Part by which a longer time is no slower one: rounding."""
MODELS = ("llama3-8b", "llama3-70b", "qwen3-32b", "qwen3-30b", "mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b", "phi-3.5-moe")
TRAINING = {"hw-dgx-h100-x2": 16, "hw-dgx-h200-x2": 16, "hw-dgx-b200-x2": 16, "hw-hgx-b300-x2": 16, "hw-dgx-h100-x4": 32}
DENSE = ("llama3-8b", "llama2-7b", "qwen3-8b", "nemotron-8b")
DEGREES = ("tp=2,dp=4,m=4", "tp=4,dp=2,m=4", "tp=8,m=8", "tp=4,pp=2,m=8")
SERVED = ("qwen3-235b", "qwen3-30b", "llama3-70b", "qwen3-32b", "mixtral-8x7b", "gpt-oss-120b", "glm-4.5-air", "minimax-m2.5")
SERVING = ("hw-dgx-h100", "hw-dgx-h200", "hw-dgx-b200")
TENSOR, USERS = (2, 4, 8), (1, 2, 4, 8, 16)
HOUSE = {
    "rooms": 26, "arrows between rooms": 170, "rooms in circles of imports": 0, "files in circles of imports": 0,
    "token lines of the package": 56_000,
}  # fmt: skip
"""Most of what `house.counts` counts."""
BEFORE = 740_823 / 59_003
"""Tokens per token line of commit 28e9a222, with Python 3.11."""


class Line(NamedTuple):
    """What is asked, the bar, the number, and whether it holds; None: no number was asked for."""

    what: str
    bar: str
    found: str
    ok: bool | None

    def __str__(self) -> str:
        verdict = {True: "ok", False: "missed", None: "-"}[self.ok]
        return f"{verdict:<8}{self.what:<65}{self.bar:<28}{self.found}"


def _agreement() -> Line:
    """The test of drawn cells, where it is built."""
    what, bar = "drawn cells on which all verbs agree", "200, at most 10 apart"
    if not (files := sorted(map(str, (ROOT / "tests").rglob("test_agreement*.py")))):
        return Line(what, bar, "not built yet", False)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    return Line(what, bar, (done.stdout.strip().splitlines() or ["no output"])[-1], done.returncode == 0)


def _quantities() -> Iterator[Line]:
    for one in table():
        given = ", ".join(f"{answer.who} {answer.value:,.5g}" for answer in one.given) or "no function found: bench/quantities.py"
        yield Line(one.quantity, "1 statement", f"{one.statements}: {given}", one.statements == 1)


def _compared(what: str, pairs: dict[str, tuple[float, float] | None]) -> Line:
    """(narrow, wide) times by drawn row; None: neither, or only one of the two, fits the memory."""
    known = {name: narrow / wide - 1 for name, (narrow, wide) in ((n, p) for n, p in pairs.items() if p is not None)}
    slower = {name: part for name, part in known.items() if part > EQUAL}
    worst = max(slower, key=lambda name: slower[name], default="")
    said = f"slower in {len(slower)}, faster in {sum(part < -EQUAL for part in known.values())} of {len(known)}; {len(pairs) - len(known)} do not fit"
    return Line(what, "never slower", said + (f"; worst {worst} {slower[worst]:+.1%}" if worst else ""), bool(known) and not slower)


def _cells(*lists: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """`DRAWN` different combinations, or all."""
    every: list[tuple[Any, ...]] = [()]
    for values in lists:
        every = [(*one, value) for one in every for value in values]
    return random.Random(SEED).sample(every, min(DRAWN, len(every)))


def _planned() -> Line:
    def best(model: str, cluster: str, precision: str) -> float:
        return plan(model, gpus=TRAINING[cluster], cluster=cluster, precision=precision, n_best=1).plan.first.found.best[0].step_us

    pairs = {f"{m} {c}": _both(lambda p, m=m, c=c: best(m, c, p)) for m, c in _cells(MODELS, tuple(TRAINING))}
    return _compared("plan: step in FP8 over BF16", pairs)


def _stepped() -> Line:
    def best(model: str, cluster: str, layout: str, precision: str) -> float:
        return step(model, cluster=cluster, layout=layout, precision=precision).steps[0].step_us

    cells = _cells(DENSE, ("hw-dgx-h100", "hw-dgx-h200", "hw-dgx-b200"), DEGREES)
    return _compared("step: dense step in FP8 over BF16", {" ".join(map(str, cell)): _both(lambda p, c=cell: best(*c, p)) for cell in cells})


def _both(us: Callable[[str], float], names: tuple[str, str] = ("fp8", "bf16")) -> tuple[float, float] | None:
    """Times in both precisions, where both fit."""
    try:
        return us(names[0]), us(names[1])
    except ConfigError:
        return None


def _gpt_oss() -> Line:
    found = serve("gpt-oss-120b", "hw-dgx-h100", gpus=1, isl=1024, osl=1024, precision="mxfp4")
    total = max((2 * point.tokens_per_gpu for point in found.points), default=0.0)  # as many tokens of prompts as of answers
    return Line("gpt-oss-120b, MXFP4, one H100, 1024/1024: total tokens/s", "8,000 (14-16k measured)", f"{total:,.0f}", total >= 8000)


def _int4() -> Line:
    def tpot(cell: tuple[Any, ...], precision: str) -> float:
        model, cluster, tensor, users = cell
        found = serve(model, cluster, gpus=tensor, layouts=[f"tp={tensor}"], precision=precision, isl=1024, osl=1024)
        if not found.points or found.points[0].memory.requests < users:
            raise ConfigError("does not fit")
        return float(found.points[0].at(users).served.tpot)

    cells = _cells(SERVED, SERVING, TENSOR, USERS)
    pairs = {" ".join(map(str, cell)): _both(lambda p, c=cell: tpot(c, p), ("int4", "fp8")) for cell in cells}
    return _compared("serve: TPOT in INT4 over FP8, 1 to 16 users", pairs)


def recorded() -> Iterator[Line]:
    """Stored files and their records; their tests take minutes."""
    folder = ROOT / "tests" / "replay"
    for name, record, least in (("digests.json", "versions.csv", 1), ("answers.json", "answers.csv", 80)):
        what, bar = f"recorded: {name}", f"{least} points, hash on record"
        if not (folder / name).exists():
            yield Line(what, bar, "not built yet", False)
            continue
        text = (folder / name).read_text()
        rows = list(csv.DictReader((folder / record).read_text().splitlines()))
        points, held = len(json.loads(text)["points"]), hashlib.sha256(text.encode()).hexdigest() in rows[-1].values()
        found = f"{points} points, hash {'is' if held else 'is not'} the last of {record}; equal if: pytest tests/replay"
        yield Line(what, bar, found, points >= least and held)


def _house() -> Iterator[Line]:
    size, files = counts(ROOT), runs(ROOT)
    most = [
        ("files from command to number: serve", 30, files["serve"]["files"]),
        ("files from command to number: dense step", 45, files["step, dense"]["files"]),
        *((name, bar, size[name]) for name, bar in HOUSE.items()),
    ]
    for what, bar, found in most:
        yield Line(what, f"at most {bar:,}", f"{found:,}", found <= bar)
    dense = size["tokens per token line"]
    yield Line("tokens per token line (Python 3.11)", f"at most {BEFORE:.2f}", f"{dense:.2f}", dense <= round(BEFORE, 2))


def _first_compare(timed: bool) -> Line:
    what, bar = "first `compare`, seconds", "at most 18"
    if not timed:
        return Line(what, bar, "not timed; --time does", None)
    with tempfile.TemporaryDirectory() as cache:
        env = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | {"XDG_CACHE_HOME": cache}
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "dysharp", "compare"], cwd=ROOT, env=env, check=True, capture_output=True)
        took = time.perf_counter() - start
    return Line(what, bar, f"{took:.1f}", took <= 18)


FIRST = """
import sys, time
from dysharp.api.planning import plan

def show(lines):
    print(time.process_time())
    sys.exit()

plan("{model}", {gpus}, cluster="{cluster}", show=show)
"""
PLANNED = (("deepseek-v3", "hw-dgx-h100-x8", 512), ("qwen3-30b", "hw-dgx-h100-x2", 16), ("llama3-70b", "hw-dgx-h100-x8", 512))


def _first_answer() -> Line:
    """Processor time of `plan` from the start of Python to the first layout that a terminal shows."""
    took = []
    for model, cluster, gpus in PLANNED:
        code = FIRST.format(model=model, gpus=gpus, cluster=cluster)
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        took.append(float(done.stdout))
    return Line("first answer of `plan`, seconds of CPU", "at most 1", ", ".join(f"{one:.2f}" for one in took), max(took) <= 1)


def lines(timed: bool) -> Iterator[Line]:
    """All bars."""
    yield _agreement()
    yield from _quantities()
    yield _planned()
    yield _stepped()
    yield _gpt_oss()
    yield _int4()
    yield from recorded()
    yield from _house()
    yield _first_answer()
    yield _first_compare(timed)
    yield Line("README's tests, minutes", "at most 6", "run: pytest -n auto -q", None)


def report(found: Iterator[Line]) -> None:
    """Print bars as they are known, and exit with 1 if one is missed."""
    missed = 0
    for line in found:
        print(line, flush=True)
        missed += line.ok is False
    print(f"{missed} missed" if missed else "no bar is missed")
    sys.exit(missed > 0)


def main() -> None:
    """Print the bars."""
    report(lines("--time" in sys.argv[1:]))


if __name__ == "__main__":
    main()
