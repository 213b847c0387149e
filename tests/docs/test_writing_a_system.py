"""docs/writing-a-system.md: its systems are the files of `examples`, its rules are those of the suite, its package is found."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import dysharp as ds
from dysharp.systems import collectives as register
from dysharp.systems import registry
from dysharp.testing.conformance import conformance
from dysharp.testing.conformance.suite import RULES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "writing-a-system.md").read_text()
EXAMPLES = {
    "toy-push": "toy_push.py", "toy-phases": "toy_phases.py", "toy-gather": "toy_gather.py", "toy-tensor": "toy_tensor.py",
    "few-ports": "switch_fan_out.py",
}  # fmt: skip
HEADINGS = {"toy-push": "## 2. ", "toy-phases": "## 3. "}


def shown(heading: str) -> list[str]:
    """Lines of the blocks of a section that are code and no doctest, without empty ones."""
    section = re.split(r"^## ", PAGE.partition(heading)[2], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = [block for block in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL) if ">>>" not in block]
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a system of `examples`, registered while a test runs."""
    name = str(request.param)
    register.all_collectives()  # scans once, before the toys come and go
    sys.path.insert(0, str(ROOT / "examples"))
    module = EXAMPLES[name].removesuffix(".py")
    try:
        __import__(module)
        yield name
    finally:
        sys.path.remove(str(ROOT / "examples"))
        sys.modules.pop(module, None)
        registry._REGISTRY.pop(name, None)
        register.REGISTERED.pop(name, None)


@pytest.mark.parametrize("name", HEADINGS)
def test_the_page_shows_the_example(name: str) -> None:
    file = (ROOT / "examples" / EXAMPLES[name]).read_text().splitlines()
    assert shown(HEADINGS[name]) == [line for line in file if line]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, indirect=True)
def test_the_examples_conform(example: str) -> None:
    report = conformance(example)
    assert report.failed == ()
    reasons = [line for line in str(report).splitlines() if line.startswith("not run")]
    assert example != "toy-push" or "\n".join([str(report).splitlines()[0], *reasons]) in PAGE


def test_the_table_has_every_rule() -> None:
    with (ROOT / "docs" / "writing-a-system" / "conformance-rules.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    expected = [(rule.name, rule.scope + ", slow" * rule.slow, rule.summary) for rule in RULES]
    assert f"lists the {len(RULES)} rules" in PAGE
    assert sorted(tuple(row[:3]) for row in rows) == sorted(expected)  # the order of the list follows who imports it first
    assert all(len(row) == 4 and len(row[3]) > 4 for row in rows)


def test_the_package_of_the_page_is_found(tmp_path: Path) -> None:
    """A folder with the metadata that an installed package has: the entry points of the page's pyproject.toml."""
    project = tomllib.loads(re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)[0])
    points = project["project"]["entry-points"]["dysharp.systems"]
    info = tmp_path / "toy_pushs-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-systems\nVersion: 0.1\n")
    lines = [f"{name} = {module}" for name, module in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[dysharp.systems]", *lines]))
    path = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "examples")))
    command = [sys.executable, "-m", "dysharp", "list", "systems", "--json"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    listed = {row["name"]: row for row in json.loads(done.stdout)}
    assert listed.keys() >= points.keys()
    assert listed["toy-push"]["summary"] == "toy-push: one kernel pushes rows, runs the experts tile by tile, and pushes sums back."


@pytest.mark.parametrize("example", ["toy-gather"], indirect=True)
def test_a_collective_from_outside_says_that_nothing_measures_it(example: str) -> None:
    rows = [ds.run(name, workload="all-gather:16MiB", cluster="hw-dgx-h100") for name in (example, "nccl-ring")]
    assert [any("no measurement checks its predictions" in line for line in row.header) for row in rows] == [True, False]
