"""`bench/attack.py`: its inputs end in one line, equal seeds give equal inputs, and every kind of finding is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError
from dysharp.figures.studies.study_folder import StudyFolder

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import attack  # noqa: E402
from attack import Input, inputs, run_input  # noqa: E402


@pytest.mark.slow
def test_malformed_inputs() -> None:
    done = subprocess.run([sys.executable, str(BENCH / "attack.py"), "--count", "300", "--seed", "15"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_folder_with_a_name_that_is_too_long_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"found no folder .File name too long"):
        StudyFolder(Path("x" * 300)).connect()


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (("report", "row.json", "-o", "r.html"), "row.json"),
        (("step", "mixtral-8x7b", "--megatron-args", "row.json", "--layout", "gpus=8"), "row.json"),
        (("step", "mixtral-8x7b", "--layout", "ep=8,pp=2,gpus=16", "--sequence", "1" + "0" * 310), ""),
    ],
)
def test_nested_json_and_a_sequence_beyond_all_floats_are_refused_in_one_line(args: tuple[str, ...], name: str) -> None:
    assert run_input(attack.main, Input("file", args, {name: DEEP} if name else {})) == ("exit 2", [])


def test_equal_seeds_give_equal_inputs() -> None:
    many = 5 * len(attack.seeds())
    assert [*inputs(many, 3)] == [*inputs(many, 3)] != [*inputs(many, 4)]
    families = {item.family for item in inputs(many, 3)}
    assert families >= {*(f"file {name}" for name in attack.seeds()), *(f"option {name}" for name in attack.BASES)}


def fault(args: list[str]) -> None:
    match args[0]:
        case "traceback":
            raise OverflowError("too large")
        case "lost file":
            Path("kept").unlink()
        case "left file":
            Path(".dysharp-x.part").touch()
        case "control character":
            print("\x1b]0;pwn\x07", flush=True)
        case "number":
            print('{"time_us": nan}')
        case "exit code":
            raise SystemExit(130)
        case "no message":
            raise SystemExit(2)
        case "hang":
            import os
            import signal

            os.kill(os.getpid(), signal.SIGALRM)
        case "memory":
            print("dysharp: error: out of memory", file=sys.stderr)


@pytest.mark.parametrize("kind", attack.KINDS)
def test_every_kind_of_finding_is_found(kind: str) -> None:
    assert [found for found, _ in run_input(fault, Input("a", (kind.replace("NaN", "number"),), {"kept": b"x"}))[1]] == [kind]
    assert run_input(fault, Input("a", ("fine",), {"x": b"data"})) == ("exit 0", [])
