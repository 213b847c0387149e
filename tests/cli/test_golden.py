"""Printed text of `advise`, `compare`, `run` and `list`, with every number replaced by #.

`python tests/cli/test_golden.py` writes the files in `golden/` anew. Read the difference before you commit it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).with_name("golden")
WIDTH = 100
PROGRESS = r"\d+ (s|min): "
"""Lines that long work prints every ten seconds, so on a slow machine only."""
_SMALL = ("--model", "deepseek-v2-lite", "--gpus", "4", "--tokens", "16")
_SMS = ("--set", "deepep.n_sm=8", "--set", "hybrid-ep.n_sm=16")
COMMANDS: dict[str, tuple[str, ...]] = {
    "advise": ("advise", "deepseek-v2-lite", "--tokens", "16", *_SMS),
    "advise-one-kernel": ("advise", "deepseek-v3", "--tokens", "16", "--cluster", "hw-dgx-b200", "--systems", "megamoe"),
    "advise-details": ("advise", "deepseek-v2-lite", "--tokens", "8", "--systems", "deepep", "--set", "deepep.n_sm=8", "--details"),
    "compare-hw": ("compare", *_SMALL, "--cluster", "hw-dgx-h100", "--forms", "all", *_SMS),
    "compare-paper": ("compare", *_SMALL, "--systems", "deepep,dysharp,ideal"),
    "run-hw": ("run", "deepep", *_SMALL, "--cluster", "hw-dgx-h100"),
    "run-paper": ("run", "dysharp", *_SMALL),
    "list-systems": ("list", "systems"),
    "model": ("model", "deepseek-v3"),
    "model-layout": ("model", "deepseek-v3", "--layout", "pp=4,vpp=4,ep=64,gpus=256,stages=Et*3|(t*4|)*14t*2mL", "--dispatcher", "hybrid-ep"),
    "list-models": ("list", "models"),
    "list-clusters": ("list", "clusters"),
    "list-figures": ("list", "figures"),
}


def without_numbers(text: str) -> str:
    """`text` with numbers as # and runs of spaces as one, so that a new calibration does not change it."""
    return re.sub(r"[ ]+", " ", re.sub(r"(?<![\w.-])[-+]?\d+(\.\d+)?(e[-+]\d+)?(?![\w.])", "#", text)).replace(" \n", "\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_text(name: str, dysharp: Callable[..., Any]) -> None:
    done = dysharp(*COMMANDS[name])
    text = "".join(line for line in (done.err + done.out).splitlines(keepends=True) if not re.match(PROGRESS, line))
    assert done.code == 0
    assert max(map(len, text.splitlines())) <= WIDTH
    lines = len(done.out.splitlines())
    assert not name.startswith("advise") or name == "advise-details" or lines <= 40
    assert _words(text) == _words((FOLDER / f"{name}.txt").read_text())


def _words(text: str) -> list[str]:
    """Words without numbers: where a line breaks depends on the numbers in it."""
    return re.sub(r"digest \w+", "digest", without_numbers(text)).split()


def _write() -> None:
    import os
    import subprocess
    import sys

    FOLDER.mkdir(exist_ok=True)
    for name, command in COMMANDS.items():
        fresh = os.environ | {"DYSHARP_FRESH": "1"}  # no line on results of earlier runs
        done = subprocess.run([sys.executable, "-m", "dysharp", *command], capture_output=True, text=True, check=True, env=fresh)
        (FOLDER / f"{name}.txt").write_text(done.stderr + done.stdout)


if __name__ == "__main__":
    _write()
