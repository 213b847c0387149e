"""docs/stable.md names what is there, and wheel and sdist install and answer on a bare machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from click.testing import CliRunner

import dysharp
from dysharp.cli.app import cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "stable.md").read_text()
SMALL = ("--gpus", "2", "--tokens", "2", "--model", "S-8")
ASKED = {"run": ("run", "ideal", *SMALL), "compare": ("compare", "--systems", "ideal,deepep", *SMALL), "model": ("model", "mixtral-8x7b")}


def promised() -> dict[str, list[str]]:
    """{command: fields} of the last table."""
    rows = re.findall(r"^\| `(\w+)` \| (`.*) \|$", PAGE.partition("Fields that programs")[2], re.MULTILINE)
    return {command: re.findall(r"`(\w+)`", fields) for command, fields in rows}


@pytest.mark.parametrize("command", promised())
def test_json_has_the_promised_fields(command: str) -> None:
    if command in ASKED:
        done = CliRunner().invoke(cli, [*ASKED[command], "--json"], catch_exceptions=False)
        there = set(json.loads(done.stdout))
    else:  # of a made answer; tests/cli compares it with what the command prints
        there = set(re.findall(r"^(\w+):", (ROOT / "tests" / "cli" / "made" / f"{command}-json.txt").read_text(), re.MULTILINE))
    assert [field for field in promised()[command] if field not in there] == []


def test_versions_agree() -> None:
    assert f'version = "{dysharp.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"Version {dysharp.__version__}." in PAGE
    assert f"## {dysharp.__version__} (" in (ROOT / "CHANGELOG.md").read_text()
    assert len((ROOT / "CHANGELOG.md").read_text().split()) < 1200  # five minutes


@pytest.mark.long
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_bare_machine_answers(tmp_path: Path, kind: str) -> None:
    builder = pytest.importorskip(f"hatchling.builders.{kind}")
    made = {"wheel": "WheelBuilder", "sdist": "SdistBuilder"}[kind]
    package = next(getattr(builder, made)(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    venv.create(tmp_path / "env", with_pip=True)
    run = [str(tmp_path / "env" / "bin" / "python"), "-m"]
    subprocess.run([*run, "pip", "install", "-q", package], check=True, cwd=tmp_path, timeout=900)
    done = subprocess.run([*run, "dysharp", "run", "deepep", *SMALL, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    ours = subprocess.run([sys.executable, "-m", "dysharp", "run", "deepep", *SMALL, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["digest"] == json.loads(ours.stdout)["digest"]
