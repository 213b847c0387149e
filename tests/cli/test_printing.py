"""Text from files on the terminal: as it is, without markup and control characters; and numbers that are never cut."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from dysharp.api.calibration import Calibration
from dysharp.base.table import fact_table, plain_table
from dysharp.base.version import MODEL_VERSION
from dysharp.cli.calibrate import _print_calibration
from dysharp.cli.texts.validate_text import _print_rows as print_rows
from dysharp.show.output import console, print_header, print_json, print_lines

HOSTILE = "[/red] :smile: \x1b]0;pwn\x07"
SHOWN = "[/red] :smile: \\x1b]0;pwn\\x07"


def test_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(plain_table(["name", "value"], [[HOSTILE, "1"]]))
    console().print(fact_table([(HOSTILE, HOSTILE)]))
    console().print(HOSTILE)
    print_lines([HOSTILE])
    assert capsys.readouterr().out.count(SHOWN) == 5
    print_header([HOSTILE])
    assert capsys.readouterr().err == f"{SHOWN}\nmodel version {MODEL_VERSION}\n"


def test_json_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": "é\x1b\x9b\u202e\udc80\U000e0001", "b": [1]}
    print_json(value)
    out = capsys.readouterr().out
    assert json.loads(out) == value
    assert "é" in out
    assert out.replace("\n", "").isprintable()


ROWS = [("deepep", "paper", "12345.6", "1234.5", "0.17", "0.08", "100 / 100"), ("trtllm-a2a", "real", "9.1", "3.5", "0.17", "0.08", "1 / 2")]
HEADINGS = ("\nsystem", "\nform", "layer\ntime us", "exposed\ncomm us", "payload\nup GB", "payload\ndown GB", "link up %\nmean / max")


def printed(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(plain_table(HEADINGS, ROWS, left=2, fold=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100])
def test_no_number_is_cut(width: int) -> None:
    text = printed(width)
    assert all(cell in text for row in ROWS for cell in row)
    assert all(len(line) <= width for line in text.splitlines())


def test_a_narrow_table_has_one_fact_a_line() -> None:
    lines = [line.split("  ", 1) for line in printed(40).splitlines()[:4]]
    facts = [(name, value.strip()) for name, value in lines]
    assert facts == [("system", "deepep"), ("form", "paper"), ("layer time us", "12345.6"), ("exposed comm us", "1234.5")]
    assert printed(80).splitlines()[2].startswith("deepep      paper")


def test_calibrate_cuts_no_number_at_60_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dysharp.show.output.console", narrow)
    error = SimpleNamespace(n=1234567, median_ape=1234.5, p90_ape=98765.4)
    errors = [SimpleNamespace(family="deepep-dispatch", shapes=7654321, before=error, after=error, held_out=error)]
    refused = {f"deepep.constant_{i}": "no row depends on it" for i in range(9)}
    fit = SimpleNamespace(errors=errors, fitted={"link.fraction": 0.87654}, before={"link.fraction": 0.81234}, refused=refused, skipped=[])
    _print_calibration(Calibration(fit, "mine.toml", "mine"))  # type: ignore[arg-type]
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines() if not line.startswith("written")) <= 60
    for number in ("1234567", "7654321", "1234.5 / 98765.4", "0.8123", "0.8765", "+8"):
        assert number in text


def test_validate_cuts_no_number_at_60_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dysharp.show.output.console", narrow)
    numbers = {"n": 1234567, "n_rows": 7654321, "median_ape": 123.4, "p90_ape": 567.8, "mape": 234.5, "bias": -345.6}
    print_rows([{"family": "inswitch-allreduce", "by": "program", "coverage": 98.76, **numbers}], "families")
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 60
    for number in numbers.values():
        assert str(number) in text


def narrow(width: int = 60) -> Console:
    """stdout as a terminal of 60 columns."""
    return Console(width=60, color_system=None, highlight=False, markup=False, emoji=False)
