"""The output that README.md shows is that of its first command, line by line (lines may be left out)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dysharp.cli.app import cli

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.slow
def test_readme_shows_what_compare_prints() -> None:
    (shown,) = re.findall(r"^```\n(Fastest .*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    done = CliRunner().invoke(cli, ["compare"], catch_exceptions=False)
    printed = iter(line.rstrip() for line in done.stdout.splitlines())
    assert [line for line in shown.splitlines() if line.rstrip() not in printed] == []  # in the order of the output


def test_readme_has_the_errors_out_of_sight() -> None:
    page = (README.parent / "docs" / "validation.md").read_text().partition("## Out of sight")[2]
    table = [[cell.strip() for cell in line.split("|")] for line in page.partition("Intervals")[0].splitlines() if line.startswith("|")]
    errors = {cells[1]: f"{float(cells[3]):.1f}" for cells in table[2:]}
    sentence = README.read_text().partition("median errors are")[2].partition("[out of sight]")[0]
    told = re.findall(r"(calls|layers|steps|TPOT|kernels|TTFT)[^%,(]*? ([\d.]+) %", sentence)
    assert {name: errors[name] for name, _ in told} == dict(told)
    assert {name for name, _ in told} >= {"calls", "kernels", "steps", "TPOT", "TTFT"}


@pytest.mark.slow
def test_readme_says_what_the_switch_saves() -> None:
    rows = [line.split("|")[3:7] for line in README.read_text().splitlines() if re.search(r"\| (GEMMs|links|latency) \|", line)]
    small = ["--model", "S-8", "--gpus", "32", "--routing", "uniform", "--tokens"]
    words = [[], [*small, "2048"], [*small, "128"]]
    for cells, more in zip(rows, words, strict=True):
        done = CliRunner().invoke(cli, ["compare", "--systems", "deepep,fusion-only,dysharp", *more], catch_exceptions=False)
        printed = dict(re.findall(r"^(deepep|fusion-only|dysharp) +([\d.]+)", done.stdout, re.MULTILINE))
        assert [f" {us} us " for us in printed.values()] == cells[:3]
        basis, switch = (float(printed[name]) for name in ("fusion-only", "dysharp"))
        assert cells[3] == f" {1 - switch / basis:.0%} "
