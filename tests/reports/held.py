"""Texts that are held as files: what is printed, JSON and pages as lines, and the files that they are compared with."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Lines = Iterable[str]
Texts = Mapping[str, Callable[[], Lines]]


def printed(show: Callable[..., Any], *args: Any, **keys: Any) -> Lines:
    """What is printed on stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show(*args, **keys)
    return out.getvalue().splitlines()


def plain(value: Any) -> Lines:
    """A result as JSON; floats have six digits, so that every machine prints the same."""

    def short(one: Any) -> Any:
        if isinstance(one, dict):
            return {str(key): short(each) for key, each in one.items()}
        if isinstance(one, list | tuple):
            return [short(each) for each in one]
        return float(f"{one:.6g}") if isinstance(one, float) else one

    return json.dumps(short(value), indent=1).splitlines()


def page_lines(page: str) -> Lines:
    """A page, a tag in a line and cells of a table beside each other; without style, versions, ends of tags and attributes that never change."""
    text = re.sub(r"<head>.*?</head>|<style>.*?</style>", "", page, flags=re.S)
    text = re.sub(r"\bdysharp \d[\w.+-]*(, model version \S+)?", "dysharp VERSION", text)
    text = re.sub(r' (?:class="(?!n best)|scope="|role="|tabindex="|viewBox="|preserveAspectRatio="|aria-\w+=")[^"]*"', "", text)
    text = re.sub(r"\s*<(?:td|th|span)>\s*", " | ", re.sub(r"</\w+>", "", text))
    return [line.strip() for line in re.sub(r"(?=<)", "\n", text).splitlines() if re.sub(r"<\w*>", "", line).strip()]


def lines_of(texts: Texts, name: str) -> list[str]:
    """The lines of a text."""
    return [line.rstrip() for each in texts[name]() for line in each.split("\n")]


def stored_lines(folder: Path, name: str) -> list[str]:
    """The lines of its file."""
    return (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def write(folder: Path, texts: Texts) -> None:
    """Write all files anew."""
    folder.mkdir(exist_ok=True)
    for name in texts:
        (folder / f"{name}.txt").write_text("\n".join(lines_of(texts, name)) + "\n", encoding="utf-8")
