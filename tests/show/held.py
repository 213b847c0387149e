"""Texts that are held as files: what is printed, JSON and pages as lines, and the files that they are compared with.

`python tests/stored_values.py` writes them. Read the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Lines = Iterable[str]
Texts = Mapping[str, Callable[[], Lines]]
MOST = 100
"""Columns of a line in a file."""


def printed(show: Callable[..., Any], *args: Any, **keys: Any) -> Lines:
    """What is printed on stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show(*args, **keys)
    return out.getvalue().splitlines()


def plain(value: Any) -> Lines:
    """A result as JSON, an entry in a line; floats have six digits, so that every machine prints the same."""

    def short(one: Any) -> Any:
        if isinstance(one, dict):
            return {str(key): short(each) for key, each in one.items()}
        if isinstance(one, list | tuple):
            return [short(each) for each in one]
        return float(f"{one:.6g}") if isinstance(one, float) else one

    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [f"{key}: {json.dumps(short(each))}" for key, each in items]


def page_lines(page: str) -> Lines:
    """A page, a row of a table, a drawing or a paragraph in a line; without style, versions, ends of tags and attributes that never change."""
    text = re.sub(r"<head>.*?</head>|<style>.*?</style>", "", page, flags=re.S)
    text = re.sub(r"\bdysharp \d[\w.+-]*(, model version \S+)?", "dysharp VERSION", text)
    text = re.sub(r' (?:class="(?!n best)|scope="|role="|tabindex="|viewBox="|preserveAspectRatio="|aria-\w+=")[^"]*"', "", text)
    text = re.sub(r"\s*<(?:td|th|span)>\s*", " | ", re.sub(r"</\w+>", "", text))
    lines = (" ".join(line.split()) for line in re.sub(r"(?=<(?:tr|li|p|h\d|pre|svg|section)\b)", "\0", text).split("\0"))
    return [line for line in lines if re.sub(r"<\w*>", "", line).strip(" |")]


def lines_of(texts: Texts, name: str) -> list[str]:
    """The lines of a text; of a long line its begin and a digest."""
    lines = [line.rstrip() for each in texts[name]() for line in each.split("\n")]
    return [line if len(line) <= MOST else f"{line[: MOST - 12].rstrip()} ~{digest(line)}" for line in lines]


def digest(text: str) -> str:
    """Eight hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def stored_lines(folder: Path, name: str) -> list[str]:
    """The lines of its file."""
    return (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def write(folder: Path, texts: Texts) -> tuple[int, int]:
    """Write all files anew; (files that changed, all files)."""
    folder.mkdir(exist_ok=True)
    before = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.txt")}
    for name in texts:
        (folder / f"{name}.txt").write_text("\n".join(lines_of(texts, name)) + "\n", encoding="utf-8")
    return sum((folder / f"{name}.txt").read_text(encoding="utf-8") != before.get(name) for name in texts), len(texts)
