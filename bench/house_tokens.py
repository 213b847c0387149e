"""Token lines by room, by the rule of tinygrad's `sz.py`: lines that hold an operator, name, number or string; docstrings and comments do not count.

The rule reads tokens of the Python that runs it: since 3.12 an f-string is several tokens, so tokens per line are comparable on one version only.
"""

from __future__ import annotations

import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

COUNTED = (tokenize.OP, tokenize.NAME, tokenize.NUMBER, tokenize.STRING)
BUDGET = Path("tests/house_budget.toml")
MARGIN, LEAST = 0.01, 5
"""A new budget is above today's lines by this part, and by so many at least."""


class Size(NamedTuple):
    """Lines that hold tokens, and their tokens."""

    lines: int
    tokens: int


def size_of(path: Path) -> Size:
    """Token lines and tokens of a Python file."""
    with path.open(encoding="utf-8") as text:
        tokens = [token for token in tokenize.generate_tokens(text.readline) if token.type in COUNTED and not _is_docstring(token)]
    return Size(len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)}), len(tokens))


def _is_docstring(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.STRING and token.string.startswith('"""') and token.line.strip().startswith('"""')


def room_of(path: Path, package: Path) -> str:
    """The folder right below the package; a loose file is a room of its own, "" the package's `__init__` and `__main__`."""
    name = path.relative_to(package).parts[0].removesuffix(".py")
    return "" if name in ("__init__", "__main__") else name


def sizes(root: Path) -> dict[str, Size]:
    """{room: size} of the checkout `root`, largest first."""
    package, lines, tokens = root / "dysharp", Counter[str](), Counter[str]()
    for path in sorted(package.rglob("*.py")):
        room, size = room_of(path, package), size_of(path)
        lines[room] += size.lines
        tokens[room] += size.tokens
    return {room: Size(n, tokens[room]) for room, n in lines.most_common()}


def total(rooms: dict[str, Size]) -> Size:
    """The sum over rooms."""
    return Size(sum(one.lines for one in rooms.values()), sum(one.tokens for one in rooms.values()))


def budget_text(root: Path) -> str:
    """The file of budgets for today's rooms of `root`."""
    rooms = {room: size.lines for room, size in sorted(sizes(root).items()) if room}
    head = "# Most token lines of each room. `python bench/house.py --budget` prints this file. Raise a number in a commit that says why.\n"
    return head + "".join(f"{room} = {lines + max(LEAST, round(MARGIN * lines))}\n" for room, lines in rooms.items())


def over_budget(root: Path, budget: dict[str, int]) -> list[str]:
    """A line for every room above its budget, without one, or with one and no file."""
    rooms = {room: size.lines for room, size in sizes(root).items() if room}
    over = [
        f"room {room}: found {lines} token lines, budget {budget[room]} (raise it in a commit that says why)"
        for room, lines in rooms.items()
        if room in budget and lines > budget[room]
    ]
    ask = f"`python bench/house.py --budget` prints {BUDGET}"
    without = [f"room {room}: found {rooms[room]} token lines and no budget, expected one ({ask})" for room in sorted(rooms.keys() - budget.keys())]
    return over + without + [f"room {room}: found a budget and no files ({ask})" for room in sorted(budget.keys() - rooms.keys())]
