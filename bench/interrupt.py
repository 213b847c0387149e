"""Ends each long command at random times, and compares what it gives afterwards with an undisturbed run.

    python bench/interrupt.py --signals 15 --kills 6 [--seed 0] [--commands sweep,study]

Signals: SIGINT and SIGTERM to the command alone. Kills: kill -9 of the command alone, so that its processes have to end by themselves. Each command
has a home of its own. Every third disturbance is followed by the same command, to its end. Printed for each command: disturbances, exit codes, the
longest time from a signal to the end, results unequal to the undisturbed one, finished points that were lost, processes and temporary files left.
Exit code 1: any of these but the codes of a signal and of the whole command, or an end after more than `MOST_S`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dysharp.base.files import PREFIX, cache_folder
from dysharp.figures.studies.study_folder import StudyFolder
from dysharp.runs.store import Store

MOST_S = 10.0
"""A second on a computer of one's own; these runs share one."""
TOGETHER = 3
_OF_THE_RUN = {"wall_s", "compile_s", "peak_rss_mb"}
POINTS = '[points]\nsystems = ["deepep", "dysharp"]\nmodels = ["S-8"]\ngpus = 8\ntokens = [64, 96, 128, 160, 192, 224, 256, 288]\n'
LAYER = ("--cluster", "hw-dgx-h100", "--json")
COMMANDS: dict[str, tuple[str, ...]] = {
    "sweep": ("sweep", "points.toml", "-j", "2", "--store", "store", "--csv", "out.csv"),
    "study": ("study", "points.toml", "--folder", "folder"),
    "compare": ("compare", "--model", "S-8", "--gpus", "8", "--tokens", "256", "--systems", "deepep,dysharp,ideal", "--json"),
    "step": ("step", "deepseek-v2-lite", "--layout", "ep=8,m=4", "--systems", "deepep", *LAYER),
    "plan": ("plan", "deepseek-v2-lite", "--gpus", "4", "--batch", "16", *LAYER),
    "serve": ("serve", "deepseek-v2-lite", *LAYER),
    "advise": ("advise", "deepseek-v2-lite", "--tokens", "8", "--systems", "deepep,megamoe", *LAYER),
    "query": ("query", "select count(*) as n from range(500000000) where range % 7 = 3", "--folder", "folder", "--json"),
}


@dataclass
class Told:
    """What is printed of a command."""

    codes: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0
    unequal: int = 0
    lost: int = 0
    left: int = 0


def _home(folder: Path) -> Path:
    """A new folder for runs of a command, with the study that a question is about."""
    home = Path(tempfile.mkdtemp(dir=folder))
    if (folder / "folder").exists():
        shutil.copytree(folder / "folder", home / "folder")
    return home


def begun(name: str, home: Path) -> subprocess.Popen[str]:
    """The command in a folder, with a cache of results of its own there, and the kernels of the user."""
    (home / "points.toml").write_text(POINTS)
    (home / "tmp").mkdir(exist_ok=True)
    own = {"XDG_CACHE_HOME": str(home / "cache"), "TMPDIR": str(home / "tmp"), "NUMBA_CACHE_DIR": str(cache_folder(""))}
    command = [sys.executable, "-m", "dysharp", *COMMANDS[name]]
    with (home / "stderr").open("w") as stderr, (home / "stdout").open("w") as stdout:
        return subprocess.Popen(command, cwd=home, env=os.environ | own, stdout=stdout, stderr=stderr, text=True, start_new_session=True)


def result(name: str, home: Path) -> Any:
    """What a command that ran to its end gives."""
    if name == "study":
        return StudyFolder(home / "folder").connect().sql("select key, time_us, digest from points order by all").fetchall()
    text = (home / ("out.csv" if name == "sweep" else "stdout")).read_text()
    return text if name == "sweep" else without_times(json.loads(text))


def without_times(value: Any) -> Any:
    """JSON without the times and the memory of the run."""
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key not in _OF_THE_RUN}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def finished(home: Path) -> set[str]:
    """What is kept of the work so far."""
    stores = (home / "store", home / "cache" / "dysharp" / "rows", home / "cache" / "dysharp" / "store")
    folder = StudyFolder(home / "folder")
    return {path.name for store in stores for path, _ in Store(store).records()} | {r["key"] for r in folder._records()} | folder._known()


def left_of(process: int, home: Path) -> int:
    """Processes of the command that still run after a while."""
    until = time.monotonic() + 5
    while (still := [p for p in Path("/proc").glob("[0-9]*") if _session(p) == process]) and time.monotonic() < until:
        time.sleep(0.05)
    return len(still)


def _session(process: Path) -> int:
    try:
        state, _, _, session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return 0
    return 0 if state == "Z" else int(session)


def disturb(name: str, expected: Any, seconds: float, numbers: list[signal.Signals], rng: random.Random, fresh: Callable[[], Path]) -> Told:
    """Send the signals, one to each run of the command."""
    told, home = Told(), fresh()
    for at, number in enumerate(numbers, 1):
        before = finished(home)
        process = begun(name, home)
        try:
            process.wait(timeout=rng.uniform(0.1, seconds))
        except subprocess.TimeoutExpired:
            begin = time.monotonic()
            process.send_signal(number)
            process.wait()
            told.slowest_s = max(told.slowest_s, time.monotonic() - begin)
        told.codes[process.returncode] += 1
        told.left += left_of(process.pid, home)
        if number != signal.SIGKILL:
            told.left += sum(1 for p in (*(home / "tmp").iterdir(), *home.rglob(f"{PREFIX}*")))
        told.lost += len(before - finished(home))
        if at % TOGETHER == 0 or at == len(numbers):
            code = begun(name, home).wait()
            told.unequal += code != 0 or result(name, home) != expected
            shutil.rmtree(home)
            home = fresh()
    return told


def main() -> int:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=15)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    asked = parser.parse_args()
    wrong = False
    print(f"{'command':8} {'whole_s':>7} {'signals':>7} {'kills':>5} {'slowest_s':>9} {'unequal':>7} {'lost':>4} {'left':>4}  codes")
    for name in asked.commands.split(","):
        rng = random.Random(f"{asked.seed} {name}")
        with tempfile.TemporaryDirectory() as folder:
            if name == "query":  # needs a study, of any points
                (Path(folder) / "points.toml").write_text(POINTS.replace("[64, 96, 128, 160, 192, 224, 256, 288]", "16"))
                subprocess.run([sys.executable, "-m", "dysharp", *COMMANDS["study"]], cwd=folder, check=True, capture_output=True)
            fresh = partial(_home, Path(folder))
            home, begin = fresh(), time.monotonic()
            if code := begun(name, home).wait():
                raise SystemExit(f"{name}: exit code {code}: {(home / 'stderr').read_text()}")
            seconds, expected = time.monotonic() - begin, result(name, home)
            signals = [rng.choice([signal.SIGINT, signal.SIGTERM]) for _ in range(asked.signals)]
            for_signals = disturb(name, expected, seconds, signals, rng, fresh)
            for_kills = disturb(name, expected, seconds, [signal.SIGKILL] * asked.kills, rng, fresh)
        bad = [sum(getattr(each, what) for each in (for_signals, for_kills)) for what in ("unequal", "lost", "left")]
        codes = for_signals.codes + for_kills.codes
        wrong |= any(bad) or for_signals.slowest_s > MOST_S or not {*codes} <= {0, 130, 143, -2, -9, -15}  # < 0: before Python was ready, or after
        shown = " ".join(f"{code}:{n}" for code, n in sorted(codes.items()))
        counts = f"{asked.signals:7} {asked.kills:5} {for_signals.slowest_s:9.2f} {bad[0]:7} {bad[1]:4} {bad[2]:4}"
        print(f"{name:8} {seconds:7.1f} {counts}  {shown}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
