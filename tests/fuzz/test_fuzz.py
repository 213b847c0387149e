"""Generated inputs over all readers and options: none may end with a traceback, a time-out, or a control character on the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError
from dysharp.cli import main
from dysharp.figures.studies.study_folder import StudyFolder
from tests.fuzz.fuzz import run_inputs
from tests.fuzz.fuzz_inputs import CANARY, FAMILIES, Input, inputs

BENCH = Path(__file__).parents[2] / "bench" / "fuzz.py"


@pytest.mark.slow
def test_generated_inputs() -> None:
    done = subprocess.run([sys.executable, str(BENCH), "--count", "300", "--seed", "15"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_folder_with_a_name_that_is_too_long_is_refused_in_one_line() -> None:
    """Found by the family "asked"."""
    with pytest.raises(ConfigError, match=r"found no folder .File name too long"):
        StudyFolder(Path("x" * 300)).connect()


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (("report", "row.json", "-o", "r.html"), "row.json"),
        (("step", "mixtral-8x7b", "--megatron-args", "row.json", "--layout", "gpus=8"), "row.json"),
        (("step", "mixtral-8x7b", "--layout", "ep=8,pp=2,gpus=16", "--sequence", "1" + "0" * 310), ""),
    ],
)
def test_nested_json_and_a_sequence_beyond_all_floats_are_refused_in_one_line(args: tuple[str, ...], name: str) -> None:
    """Found by seed 20261126."""
    (outcome,) = run_inputs(main, [Input("asked", args, {name: DEEP.encode()} if name else {})])
    assert (outcome.code, outcome.findings) == (2, ())


def test_equal_seeds_give_equal_inputs() -> None:
    assert list(inputs(24, 3)) == list(inputs(24, 3)) != list(inputs(24, 4))
    assert {item.family for item in inputs(24, 3)} == set(FAMILIES)


def fault(args: list[str]) -> None:
    match args[0]:
        case "traceback":
            raise OverflowError("too large")
        case "executed":
            Path(CANARY).touch()
        case "control character":
            print("\x1b]0;pwn\x07", flush=True)
        case "long line":
            print("x" * 5000, file=sys.stderr, flush=True)
            raise SystemExit(1)
        case "exit code":
            raise SystemExit(130)
        case "no message":
            raise SystemExit(2)
        case "memory":
            bytearray(3 << 29)


@pytest.mark.parametrize("kind", ["traceback", "executed", "control character", "long line", "exit code", "no message", "memory"])
def test_every_kind_of_finding_is_found(kind: str) -> None:
    (outcome,) = run_inputs(fault, [Input("a", (kind,))])
    assert [finding.kind for finding in outcome.findings] == [kind]
    (fine,) = run_inputs(fault, [Input("a", ("fine",), {"x": b"data"})])
    assert (fine.code, fine.findings) == (0, ())
