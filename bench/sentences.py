"""Sentences and names at random, for a reader who has read nothing else: which of them must be read twice?

    python bench/sentences.py [--seed 1] [--sentences 60] [--names 30]

A sentence is of docs (without the notebook), a docstring, a message of an error, or a line of a screen that tests store.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {"docs": 0.4, "docstrings": 0.3, "messages": 0.15, "output": 0.15}
"""Kind of sentence -> part of the draw."""
SCREENS = ("tests/cli/made", "tests/cli/made_commands", "tests/cli/golden")
LEAST_WORDS = 5
Place = tuple[str, str]


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Files of the package."""
    for path in sorted((ROOT / "dysharp").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def cut(place: str, text: str) -> Iterator[Place]:
    """The sentences of a text that has no code."""
    plain = re.sub(r"```.*?```", "", text, flags=re.S)
    for line in re.split(r"(?<=[.:;?])\s+(?=[A-Z`])|\n\s*\n|\n(?=[|#*-])", plain):
        sentence = " ".join(line.split())
        if len(re.findall(r"[A-Za-z]{2,}", sentence)) >= LEAST_WORDS:
            yield place, sentence


def sentences() -> dict[str, list[Place]]:
    """All sentences by kind."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "notebook" not in path.parts]
    found: dict[str, list[Place]] = {kind: [] for kind in PARTS}
    for path in sorted([ROOT / "README.md", *pages]):
        found["docs"] += cut(path.relative_to(ROOT).as_posix(), path.read_text())
    for path in sorted(path for folder in SCREENS for path in (ROOT / folder).glob("*.txt")):
        lines = re.sub(r"\n +(?=\S)", " ", path.read_text()).replace("\n", "\n\n")  # a line that goes on is indented
        found["output"] += cut(path.relative_to(ROOT).as_posix(), lines)
    for place, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                found["docstrings"] += cut(f"{place}:{node.lineno}", node.value.value)
            elif isinstance(node, ast.Raise) and node.exc is not None:
                found["messages"] += cut(f"{place}:{node.lineno}", ast.unparse(node.exc))
    return found


def names() -> list[Place]:
    """Functions, classes and constants of the package, with their module."""
    found = []
    for place, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("__"):
                found.append((f"{place}:{node.lineno}", node.name))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
                found.append((f"{place}:{node.lineno}", node.targets[0].id))
    return found


def main() -> None:
    """Print the draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for option, value in (("seed", 1), ("sentences", 60), ("names", 30)):
        parser.add_argument(f"--{option}", type=int, default=value)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    for kind, every in sentences().items():
        for place, text in draw.sample(every, round(PARTS[kind] * asked.sentences)):
            print(f"{kind:<11}{place}\n    {text}")
    for place, name in draw.sample(names(), asked.names):
        print(f"{'name':<11}{place}  {name}")


if __name__ == "__main__":
    main()
