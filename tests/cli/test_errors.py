"""Wrong input: one line on stderr, nothing on stdout, exit code 2, nothing written."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dysharp.base.errors import SimulationError

Call = Callable[..., Any]
SMALL = ("--gpus", "4", "--tokens", "24")


def refuse(done: Any, *parts: str) -> None:
    """One line with all of `parts`, exit code 2, no data."""
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("dysharp: error: ")
    assert done.err.count("\n") == 1
    for part in parts:
        assert part in done.err


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("rnu", ['did you mean "run"?']),
        ("run", ["SYSTEM"]),
        ("run deepeep", ['did you mean "deepep"?']),
        ("compare deepseek-v3", ["unexpected extra argument (deepseek-v3); expected --model deepseek-v3"]),
        ("compare deepseek-v3 deepseek-v2-lite", ["unexpected extra arguments (deepseek-v3 deepseek-v2-lite)\n"]),
        ("compare deepep dysharp", ["; expected --systems deepep,dysharp"]),
        ("run deepep dysharp", ["unexpected extra argument (dysharp)\n"]),
        ("compare --modle L-8", ["--modle", "--model"]),
        ("compare --model L-9", ["unknown model 'L-9'", "did you mean"]),
        ("compare --cluster paper-gh200", ["did you mean"]),
        ("compare --cluster hw-h100-nvl8", ["unknown cluster 'hw-h100-nvl8'"]),
        ("compare --routing lognorml:0.6", ['did you mean "lognormal"?']),
        ("compare --routing dump.npy", ["found 'dump.npy', expected a trace (.npz)", "dysharp routing import"]),
        ("trace deepep --only 5:3 -o run.perfetto-trace", ["--only: found '5:3', which holds no token"]),
        ("trace deepep -o run.txt", ["run.txt: found the ending '.txt', expected .perfetto-trace or .perfetto-trace.gz"]),
        ("step deepseek-v2-lite --layout ep=4,m=4 --timeline x.txt", ["x.txt: found the ending '.txt', expected .perfetto-trace or"]),
        ("compare --tokens 0", ["tokens: found 0, expected at least 1"]),
        ("compare --tokens -1", ["found -1"]),
        ("compare --tokens many", ["many"]),
        ("compare --gpus 0", ["gpus: found 0"]),
        ("compare --gpus 3 --placement contiguous", ["64 experts do not divide by 3 GPUs"]),
        ("compare --tokens 1073741824", ["GiB of memory, this computer has"]),
        ("compare --direction backward", ["direction: found 'backward'", "expected one of both, bwd, fwd"]),
        ("reproduce area --report a.html", ["found .html for area", "expected .md"]),
        ("reproduce --tornado --direction bwd", ["found direction bwd", "expected fwd"]),
        ("reproduce fig18 --check --direction bwd", ["--check: found direction bwd", "expected fwd"]),
        ("reproduce area --tokens 64 --tornado-of zz", ["reproduce: found --tokens, --tornado-of, expected --tornado beside"]),
        ("reproduce fig18 --direction up", ["direction: found 'up'"]),
        ("compare --fidelity flit", ["expected one of burst, packet"]),
        ("compare --finite --fidelity burst", ["finite: found --fidelity burst, expected packet"]),
        ("run dysharp --finite --fidelity burst", ["finite: found --fidelity burst, expected packet"]),
        ("compare --quick --set deepep.dispatch=mxfp8", ["deepep.dispatch: found 'mxfp8', expected rows or fp8"]),
        ("trace dysharp --dies gpu:0@50 --to 5", ["--to: found it with --dies alone, expected a file too"]),
        ("serve qwen3-30b --cluster paper-gh200-nvl32", ["cluster paper-gh200-nvl32: found no gpu, expected a cluster of real GPUs"]),
        ("compare --set dysharp.combine_window", ["--set", "expected system.option=value"]),
        ("compare --set dysharp.window=1", ["option dysharp.window: unknown"]),
        ("compare --set dysharp.combine_window=1 --set dysharp.combine_window=2", ["twice"]),
        ("compare --systems deepep,ideel", ['did you mean "ideal"?']),
        ("compare --baseline explicit", ["not among the systems compared"]),
        ("compare --plot out.pdf", ["found ending '.pdf', expected .svg or .png"]),
        ("compare --gpus 4 --tokens 8 --set n_sm=8", ['expected "SYSTEM.n_sm" with one of deepep, nvls, comet, fusion-only, dysharp, ideal']),
        ("compare --plot no/such/folder/out.svg", ["found no folder"]),
        ("list sistems", ['did you mean "systems"?']),
        ("routing", ["Missing argument 'FILE_OR_NAME', such as `dysharp routing deepseek-v2-lite`; `dysharp routing --help` lists commands\n"]),
        ("routing deepseek-v2-lit", ['did you mean "deepseek-v2-lite"?']),
        ("routing deepseek-v2-lite --gpus 8,x", ["--gpus: found '8,x'"]),
        ("routing deepseek-v2-lite --gpus 0", ["found 0 GPUs"]),
        ("routing lognormal:0.65", ["needs a model"]),
    ],
)
def test_command_lines(dysharp: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, parts: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    refuse(dysharp(*line.split()), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("bad.toml", "hidden = [", ["malformed TOML", "line 1"]),
        ("typo.toml", 'base = "L-8"\nname = "mine"\nhiden = 5\n', ["hiden: unknown key", 'did you mean "hidden"?']),
        ("config.json", '{"hidden_size": ', ["malformed JSON", "line 1"]),
        ("list.json", "[1, 2]", ["expected a JSON object"]),
    ],
)
def test_files_of_models(dysharp: Call, tmp_path: Path, name: str, text: str, parts: list[str]) -> None:
    (tmp_path / name).write_text(text)
    refuse(dysharp("compare", *SMALL, "--model", str(tmp_path / name)), name, *parts)


def trace(tmp_path: Path, **changed: Any) -> Path:
    """A valid trace of 64 experts, top-6, but for what is changed."""
    expert = np.tile(np.arange(6, dtype=np.int16), (2, 100, 1))
    file = tmp_path / "trace.npz"
    np.savez(file, **{"expert": expert, "meta": np.array('{"E": 64}'), **changed})
    return file


def test_a_valid_trace_runs(dysharp: Call, tmp_path: Path) -> None:
    assert dysharp("run", "deepep", *SMALL, "--routing", str(trace(tmp_path))).code == 0


@pytest.mark.parametrize("command", ["run", "routing"])
@pytest.mark.parametrize(
    ("row", "parts"),
    [([0, 1, 2, 3, 4, 64], ["64"]), ([0, 1, 2, 3, 4, -2], ["-2"]), ([0, 1, 2, 3, 4, 4], ["4"])],
    ids=["out of range", "negative", "duplicate"],
)
def test_ids_of_traces(dysharp: Call, tmp_path: Path, command: str, row: list[int], parts: list[str]) -> None:
    expert = np.tile(np.arange(6, dtype=np.int16), (2, 100, 1))
    expert[1, 57] = row
    file = str(trace(tmp_path, expert=expert))
    args = ("run", "deepep", *SMALL, "--routing", file) if command == "run" else ("routing", file)
    refuse(dysharp(*args), "trace.npz", "57", *parts)


def test_truncated_and_pickled_arrays(dysharp: Call, tmp_path: Path) -> None:
    file = trace(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    refuse(dysharp("routing", str(file)), "trace.npz")
    refuse(dysharp("run", "deepep", *SMALL, "--routing", str(file)), "trace.npz")

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    assert b"executed" in pickle.dumps(Bomb())
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("expert.npy", buffer.getvalue())
    refuse(dysharp("routing", str(file)), "trace.npz")
    assert not (tmp_path / "executed").exists()


def test_a_failed_plot_leaves_nothing(dysharp: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    done = dysharp("compare", *SMALL, "--systems", "ideal", "--plot", str(tmp_path / "x.svg"))
    assert (done.code, done.out) == (130, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyboardInterrupt(), 130, "dysharp: interrupted"),
        (SimulationError("deadlock at 3 us"), 1, "dysharp: error: deadlock at 3 us\n"),
        (MemoryError(), 2, "dysharp: error: out of memory; take fewer tokens, bytes or GPUs\n"),
    ],
)
def test_exit_codes(dysharp: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr("dysharp.api.compare", fail)
    done = dysharp("compare")
    assert (done.code, done.out) == (code, "")
    assert done.err.strip() == text.strip()


def test_lint_of_another_file_names_the_importer(dysharp: Call, tmp_path: Path) -> None:
    np.save(tmp_path / "dump.npy", np.zeros((1, 8, 4), np.int64))
    refuse(dysharp("routing", "lint", str(tmp_path / "dump.npy")), "expected a trace (.npz); `dysharp routing import` makes one")
