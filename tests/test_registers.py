"""Registers find what their folders declare, also in a process that has imported nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REGISTERS = {
    "schedule": ("dysharp.training.schedules.registry", "all_schedules", "training/schedules"),
    "collective": ("dysharp.systems.collectives", "all_collectives", "systems/collectives"),
    "system": ("dysharp.systems.registry", "all_systems", "systems"),
    "calculated": ("dysharp.figures.metric", "all_calculated", "figures/metrics"),
}
FRESH = """
import importlib, os, sys
for word in sys.argv[1:]:
    module, names = word.split(":")
    if os.fork() == 0:
        print(module, *getattr(importlib.import_module(module), names)())
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


@cache
def found() -> dict[str, set[str]]:
    """{module of a register: names that it lists}, each in a process of its own."""
    asked = [f"{module}:{names}" for module, names, _ in REGISTERS.values()]
    done = subprocess.run([sys.executable, "-c", FRESH, *asked], cwd=ROOT, capture_output=True, text=True, check=True)
    return {module: set(names) for module, *names in (text.split() for text in done.stdout.splitlines())}


@pytest.mark.parametrize("decorator", REGISTERS)
def test_a_register_lists_every_name_of_its_folder(decorator: str) -> None:
    module, _, folder = REGISTERS[decorator]
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "dysharp" / folder).glob("*.py")]
    declared = {name for text in texts for name in re.findall(rf'^@{decorator}\(\s*"([^"]+)"', text, re.MULTILINE)}
    assert len(declared) > 3
    assert declared <= found()[module]
