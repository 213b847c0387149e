"""Questions of direction (`bench/directions.py`): a few of them, what counts as wrong, and that a command line repeats a question."""

from __future__ import annotations

import importlib
import random
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from dysharp.cli.app import SETTINGS, cli

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def directions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/directions.py."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("directions")


def test_forty_questions_have_the_right_direction(directions: ModuleType) -> None:
    drawn = directions.questions(40, 1, ("compare", "plan", "serve"))
    asked = [directions.ask(verb, kind, random.Random(number)) for number, (verb, kind) in enumerate(drawn)]
    wrong = [line for one in asked if one and one.verdict == "wrong" for line in one.lines()]
    assert not wrong, "\n".join(wrong)
    assert sum(one is not None and one.verdict == "right" for one in asked) >= 38


@pytest.mark.parametrize(
    ("sign", "now", "verdict"),
    [
        ("<", 0.9, "right"), ("<", 1.0, "note"), ("<", 1.002, "note"), ("<", 1.1, "wrong"),
        ("<=", 1.0, "right"), ("<=", 1.002, "right"), ("<=", 1.1, "wrong"),
        (">", 1.0001, "right"), (">=", 0.9, "wrong"), ("=", 1.0, "right"), ("=", 0.999, "wrong"),
    ],
)  # fmt: skip
def test_a_move_against_the_sign_is_wrong(directions: ModuleType, sign: str, now: float, verdict: str) -> None:
    kind = directions.Kind("compare", "tokens", "*2", "us", sign, "a reason")
    assert directions.verdict_of("compare", kind, 1.0, now, []) == verdict
    assert directions.verdict_of("compare", kind, 1.0, now, ["warning: tokens=2 has no effect"]) == ("wrong" if verdict == "wrong" else "note")


def test_command_lines_are_read(directions: ModuleType) -> None:
    for verb, kind in directions.questions(300, 0, (*directions.VERBS,)):
        draw = random.Random(0)
        inputs = {key: draw.choice(values) for key, values in {**directions.BASES[verb], **kind.on.get(verb, kind.on)}.items()}
        after = directions.changed(verb, inputs, kind) if kind.key != "what-if" and inputs["model"] != "llama3-70b" else inputs
        name, *rest = shlex.split(directions.command_of(verb, after).rpartition("dysharp ")[2])
        cli.commands[name].make_context(name, rest, **SETTINGS)
