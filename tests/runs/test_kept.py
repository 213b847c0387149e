"""Rows that are read in place of a run: equal to those of a run, and never those of other inputs or other code."""

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.runs import job
from dysharp.runs import kept as kept_module
from dysharp.runs import store as store_module
from dysharp.runs.kept import rows_kept_in
from dysharp.specs.choices import choices_overridden
from dysharp.systems import get_system, registry

SMALL: dict[str, Any] = {"gpus": 4, "tokens": 32}


def counts(folder: Path, **request: Any) -> tuple[int, int]:
    with rows_kept_in(folder) as kept:
        dysharp.compare(["deepep", "dysharp"], **(SMALL | request))
    return kept.read, kept.ran


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"fidelity": "packet", "routing": "uniform"},
        {"direction": "both", "start": "normal:3", "routing": "uniform"},
        {"cluster": "hw-dgx-h100", "forms": "all", "options": {"deepep.n_sm": 12}},
    ],
)
def test_a_kept_row_is_the_row_of_the_run(tmp_path: Path, request_: dict[str, Any]) -> None:
    with rows_kept_in(tmp_path) as kept:
        first, second = (dysharp.compare(**(SMALL | request_)) for _ in range(2))
    assert kept.read == kept.ran == len(first.rows)
    assert first == second


CHANGES: tuple[dict[str, Any], ...] = (
    {"tokens": 33},
    {"seed": 1},
    {"gpus": 8},
    {"direction": "bwd"},
    {"model": "S-8"},
    {"cluster": "paper-gh200-nvl32,link_GBps=400"},
    {"slow": "rank=0:1.1"},
    {"routing": "normal:0.1"},
    {"placement": "eplb"},
    {"fidelity": "packet"},
)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_another_input_is_another_point(tmp_path: Path, change: dict[str, Any]) -> None:
    synthetic = {"routing": "powerlaw:1", "placement": "contiguous"}
    assert counts(tmp_path, **synthetic) == (0, 2)
    assert counts(tmp_path, **(synthetic | change)) == (0, 2)
    assert counts(tmp_path, **synthetic) == (2, 0)


def test_options_and_choices_are_inputs_of_a_system(tmp_path: Path) -> None:
    assert counts(tmp_path) == (0, 2)
    assert counts(tmp_path, options={"dysharp.dispatch_window": 64}) == (1, 1)
    with choices_overridden({"machine.responder_ns": 1000}):
        assert counts(tmp_path) == (0, 2)


def test_other_code_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts(tmp_path) == (0, 2)
    monkeypatch.setattr(store_module, "code_digest", lambda: "edited")
    assert counts(tmp_path) == (0, 2)


def test_a_file_with_new_content_is_another_point(tmp_path: Path) -> None:
    model = tmp_path / "mine.toml"
    model.write_text('base = "S-8"\nname = "mine"\n')
    assert counts(tmp_path / "kept", model=str(model)) == (0, 2)
    model.write_text('base = "S-8"\nname = "mine"\ntopk = 4\n')
    assert counts(tmp_path / "kept", model=str(model)) == (0, 2)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: re.sub('"time_us": [0-9.]+', '"time_us": 1.0', text, count=1),
        lambda text: "{}",
        lambda text: "[" * 100_000,
        lambda text: "",
    ],
)
def test_a_damaged_file_is_run_again(tmp_path: Path, damage: Callable[[str], str]) -> None:
    assert counts(tmp_path) == (0, 2)
    for path in tmp_path.glob("*.json"):
        path.write_text(damage(path.read_text()))
    assert counts(tmp_path) == (0, 2)
    assert counts(tmp_path) == (2, 0)


def test_the_record_of_another_system_is_run_again(tmp_path: Path) -> None:
    assert counts(tmp_path) == (0, 2)
    one, other = tmp_path.glob("*.json")
    one.write_text(other.read_text())
    assert counts(tmp_path) == (1, 1)


def test_a_link_in_the_folder_is_replaced_and_a_pipe_does_not_hang(tmp_path: Path) -> None:
    assert counts(tmp_path / "kept") == (0, 2)
    (tmp_path / "victim").write_text("mine")
    link, pipe = (tmp_path / "kept").glob("*.json")
    link.unlink()
    link.symlink_to(tmp_path / "victim")
    pipe.unlink()
    os.mkfifo(pipe)
    assert counts(tmp_path / "kept") == (0, 2)
    assert counts(tmp_path / "kept") == (2, 0)
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_system_of_the_user_is_always_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*args: Any) -> Any:
        return get_system("deepep").paper(*args)

    monkeypatch.setitem(registry._REGISTRY, "mine", dataclasses.replace(get_system("deepep"), name="mine", paper=plan))
    with rows_kept_in(tmp_path) as kept:
        for _ in range(2):
            dysharp.compare(["mine"], **SMALL)
    assert (kept.read, kept.ran) == (0, 2)


def test_the_oldest_files_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "MOST_FILES", 2)
    counts(tmp_path)
    counts(tmp_path, seed=1)
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert counts(tmp_path, seed=1) == (2, 0)


def test_advise_reads_what_it_ran(tmp_path: Path) -> None:
    with rows_kept_in(tmp_path) as kept:
        first = dysharp.advise("deepseek-v2-lite", tokens=32, systems=["deepep", "megatron-a2a"])
        ran = kept.ran
        assert dysharp.advise("deepseek-v2-lite", tokens=32, systems=["deepep", "megatron-a2a"]).to_dict() == first.to_dict()
    assert kept.ran == ran


def test_the_command_says_what_it_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DYSHARP_FRESH")
    command = ["compare", "--systems", "deepep,dysharp", "--gpus", "4", "--tokens", "32"]
    first, second, fresh = (CliRunner().invoke(cli, [*command, *more]) for more in ([], [], ["--fresh"]))
    assert "results were read" not in first.stderr + fresh.stderr
    assert "2 of 2 results were read from " in " ".join(second.stderr.split())
    assert first.stdout == second.stdout


def test_a_full_disk_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str, **_: bool) -> None:
        raise ConfigError("No space left on device")

    monkeypatch.setattr(store_module, "write_text", full)
    with rows_kept_in(tmp_path) as kept:
        assert len(dysharp.compare(["deepep", "dysharp"], **SMALL).rows) == 2
    assert kept.problem == "No space left on device"


def test_rows_of_sources_that_change_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "sources_changed", lambda: True)
    assert counts(tmp_path) == (0, 2)
    assert not list(tmp_path.glob("*.json"))


def test_systems_that_ended_are_kept_when_a_later_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = job.run_point

    def interrupted(system: Any, *rest: Any) -> Any:
        if system.name == "dysharp":
            raise KeyboardInterrupt
        return run(system, *rest)

    monkeypatch.setattr(job, "run_point", interrupted)
    with pytest.raises(KeyboardInterrupt):
        counts(tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 1
