"""Text from files on the terminal: as it is, without markup and control characters; and numbers that are never cut."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from dysharp.cli.output import console, print_header, print_json, print_lines
from dysharp.table import fact_table, plain_table

HOSTILE = "[/red] :smile: \x1b]0;pwn\x07"
SHOWN = "[/red] :smile: \\x1b]0;pwn\\x07"


def test_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(plain_table(["name", "value"], [[HOSTILE, "1"]]))
    console().print(fact_table([(HOSTILE, HOSTILE)]))
    console().print(HOSTILE)
    print_lines([HOSTILE])
    assert capsys.readouterr().out.count(SHOWN) == 5
    print_header([HOSTILE])
    assert capsys.readouterr().err == f"{SHOWN}\n"


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
