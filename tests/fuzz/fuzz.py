"""Runs generated inputs, each in a process of its own, and says what went wrong.

A wrong input has to end with exit code 2 (or 1) and one line. A finding is: a traceback, a time-out, a file that nobody asked for, a control
character on the terminal, a line of garbage, memory beyond the limit.
"""

import contextlib
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.fuzz_inputs import CANARY, Input

CPU_S = 60
WALL_S = 300
MORE_BYTES = 1 << 30
"""Memory that an input may take beyond the memory that the process had before."""
MAX_LINE = 3000
TRACEBACK = 99
"""Exit code of a process that ended with an exception."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one input did wrong, and where."""

    kind: str
    text: str
    input: Input


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one input ended. `findings`: empty where all is well."""

    code: int
    findings: tuple[Finding, ...]


def run_inputs(main: Callable[[list[str]], object], inputs: Iterable[Input]) -> Iterator[Outcome]:
    """The outcome of every input. `main` is the command line; it is called in a fork of this process, so import what is slow before."""
    for item in inputs:
        folder = Path(tempfile.mkdtemp(prefix="dysharp-fuzz-"))
        try:
            yield _run(main, item, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _run(main: Callable[[list[str]], object], item: Input, folder: Path) -> Outcome:
    work = folder / "work"
    work.mkdir()
    for name, data in item.files.items():
        (work / name).write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    child = os.fork()
    if child == 0:
        _child(main, item, folder)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    out, err = ((folder / name).read_text("utf-8", "replace") for name in ("out", "err"))
    faults = list(_faults(code, out, err))
    if usage.ru_maxrss * 1024 - before > MORE_BYTES:
        faults.append(("memory", f"{usage.ru_maxrss >> 10} MiB, {before >> 20} MiB before"))
    if (work / CANARY).exists() or {p.name for p in folder.iterdir()} != {"work", "out", "err"}:
        faults.append(("executed", f"found {sorted(p.name for p in (*work.iterdir(), *folder.iterdir()))}"))
    return Outcome(code, tuple(Finding(kind, text[:600], item) for kind, text in faults))


def _faults(code: int, out: str, err: str) -> Iterator[tuple[str, str]]:
    if code == TRACEBACK:
        yield "traceback", " / ".join(err.strip().splitlines()[-5:])
    elif code in (-signal.SIGALRM, -signal.SIGXCPU):
        yield "time-out", signal.Signals(-code).name
    elif code not in (0, 1, 2):
        yield "exit code", f"{code}: {err[-300:]}"
    elif code == 2 and "error: " not in err:
        yield "no message", err[-300:]
    if code != TRACEBACK:
        if mark := _CONTROL.search(out + err):
            yield "control character", repr((out + err)[max(0, mark.start() - 60) : mark.end() + 20])
        if any(len(line) > MAX_LINE for line in err.splitlines()):
            yield "long line", err[:200]


def _child(main: Callable[[list[str]], object], item: Input, folder: Path) -> None:
    """Call the command line and end the process."""
    code = TRACEBACK
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115  until the end
        os.chdir(folder / "work")
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
        resource.setrlimit(resource.RLIMIT_AS, (_address_bytes() + 4 * MORE_BYTES, resource.RLIM_INFINITY))  # protects this machine
        signal.alarm(WALL_S)
        main(list(item.args))
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _address_bytes() -> int:
    """The address space that this process takes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
