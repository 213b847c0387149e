"""The record of the files of replay points: `versions.csv`, one line for each file that a model version had.

A line holds the model version, the number of points and the SHA-256 of `digests.json` with so many points. A line is written once and stays.
Points of a new system go to the end of the file, and a further line records the longer file; a stored point changes with a new version only.
"""

from __future__ import annotations

import csv
import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("versions.csv")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One line: the file of `version` with its first `points` points has the hash `sha256`."""

    version: str
    points: int
    sha256: str
    note: str = ""


def file_text(version: str, points: dict[str, Any]) -> str:
    """The text of `digests.json` or `answers.json`: one point a line."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in points.items())
    return f'{{"model_version": "{version}", "points": {{\n{lines}\n}}}}\n'


def recorded(version: str, points: dict[str, Any]) -> Recorded:
    """The line for a file with these points."""
    return Recorded(version, len(points), hashlib.sha256(file_text(version, points).encode()).hexdigest())


def read_record(text: str) -> list[Recorded]:
    """All lines of the record."""
    return [Recorded(r["version"], int(r["points"]), r["sha256"], r["note"]) for r in csv.DictReader(text.splitlines())]


def line_of(record: Recorded) -> str:
    """The line as it stands in `versions.csv`."""
    return f"{record.version},{record.points},{record.sha256},{record.note}"


def faults(file: str, record: list[Recorded], name: str = "digests.json", record_name: str = RECORD.name) -> list[str]:
    """What is wrong with the text of the file `name`, by the lines of its version; empty if nothing is."""
    stored = json.loads(file)
    version, points = stored["model_version"], stored["points"]
    own = [line for line in record if line.version == version]
    if not own:
        return [f"model version {version}: found no line in {record_name}, expected one"]
    found = []
    for line in own:
        first = dict(list(points.items())[: line.points])
        if recorded(version, first).sha256 != line.sha256:
            found.append(f"model version {version}: found another file than was recorded with {line.points} points; a change needs a new version")
    if len(points) != max(line.points for line in own):
        found.append(f"model version {version}: found {len(points)} points, expected the {max(line.points for line in own)} that are recorded")
    if file != file_text(version, points):
        found.append(f"{name}: found another layout than is written")
    return found


def lost_lines(now: str, earlier: list[str]) -> list[str]:
    """Lines of an earlier record that the record of today lacks: rewritten or taken away."""
    kept = set(now.splitlines())
    return sorted({line for text in earlier for line in text.splitlines()} - kept)


def earlier_records(record: Path = RECORD) -> list[str] | None:
    """The record at every commit that changed it, None outside a git checkout."""
    folder, name = record.parent, record.name

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout

    try:
        commits = git("log", "--format=%H", "--", name).split()
        return [git("show", f"{commit}:./{name}") for commit in commits]
    except (OSError, subprocess.CalledProcessError):
        return None
