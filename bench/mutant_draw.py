"""The draw of `bench/mutants.py`: every line of `dysharp/` that can change by one flip, constant, dropped call ..., in a random order."""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """`file` (from the root) with the characters `start` .. `stop` of its text replaced by `new`."""

    id: str
    file: str
    line: int
    first_line: int
    last_line: int
    operator: str
    start: int
    stop: int
    new: str
    was: str
    became: str


FLIPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is", "in": "not in", "not in": "in"}
COMPARE = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
BINARY = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
RETURNS = {"int": "0", "float": "0.0", "bool": "False", "str": "''"}


@dataclass(frozen=True, slots=True)
class Site:
    """A possible change: the bytes `start` .. `stop` of a file become `new`."""

    operator: str
    start: int
    stop: int
    new: str


def _plain(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Constant))


class Sites(ast.NodeVisitor):
    """Collects the possible changes of one file."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.raw = text.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Site] = []
        self.returns: list[str] = []
        self.visit(ast.parse(text))

    def _at(self, node: Any, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        return int(self.starts[line - 1] + column)

    def _text(self, node: ast.AST) -> str:
        return self.raw[self._at(node) : self._at(node, True)].decode()

    def _add(self, operator: str, start: int, stop: int, new: str) -> None:
        self.found.append(Site(operator, start, stop, new))

    def _whole(self, node: ast.AST, operator: str, new: str) -> None:
        self._add(operator, self._at(node), self._at(node, True), new)

    def _between(self, left: ast.AST, right: ast.AST, old: str, new: str, operator: str) -> None:
        start, stop = self._at(left, True), self._at(right)
        gap = self.raw[start:stop].decode()
        if gap.count(old) == 1 and "#" not in gap:
            at = start + len(gap[: gap.index(old)].encode())
            self._add(operator, at, at + len(old), new)

    # What is not code that runs, or is only text for people.
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in [*node.defaults, *node.kw_defaults]:
            if default is not None:
                self.visit(default)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name == "__repr__":
            return
        self.visit(node.args)
        self.returns.append(ast.unparse(node.returns) if node.returns else "")
        for part in node.body:
            self.visit(part)
        self.returns.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self._negate(node)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node)
        self.generic_visit(node)

    def _negate(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not isinstance(node.test, (ast.Constant, ast.Compare)):
            self._whole(node.test, "negated condition", f"not ({self._text(node.test)})")

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            old = COMPARE[type(op)]
            self._between(left, right, old, FLIPS[old], "flipped comparison")
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in itertools.pairwise(node.values):
            self._between(left, right, old, new, "and/or")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._whole(node, "negated condition", f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in BINARY and not any(isinstance(side, (ast.JoinedStr, ast.List)) for side in (node.left, node.right)):
            old, new = BINARY[type(node.op)]
            self._between(node.left, node.right, old, new, "arithmetic")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in BINARY and not isinstance(node.value, (ast.List, ast.ListComp, ast.JoinedStr)):
            old, new = BINARY[type(node.op)]
            self._between(node.target, node.value, old + "=", new + "=", "arithmetic")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._whole(node, "constant", str(not value))
        elif isinstance(value, int):
            self._whole(node, "constant", str(value + 1))
            if value > 0:
                self._whole(node, "constant", str(value - 1))
        elif isinstance(value, float):
            self._whole(node, "constant", repr(1.5 * value if value else 0.5))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("min", "max"):
            self._whole(node.func, "min/max", {"min": "max", "max": "min"}[name])
        plain = [a for a in node.args if not isinstance(a, ast.Starred)]
        if len(plain) == len(node.args) and name not in ("isinstance", "getattr", "zip", "min", "max"):
            for a, b in itertools.pairwise(plain):
                if _plain(a) and _plain(b) and ast.dump(a) != ast.dump(b):
                    middle = self.raw[self._at(a, True) : self._at(b)].decode()
                    self._add("swapped arguments", self._at(a), self._at(b, True), self._text(b) + middle + self._text(a))
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._whole(node, "dropped call", "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        kind = self.returns[-1] if self.returns else ""
        if node.value is not None and kind in RETURNS and ast.unparse(node.value) != RETURNS[kind]:
            self._whole(node.value, "returned constant", RETURNS[kind])
        if node.value is not None:
            self.visit(node.value)


def _statement_lines(tree: ast.Module, line: int) -> tuple[int, int]:
    """First and last line of the innermost simple statement, or header of a compound one, around `line`."""
    best = (1, 1 << 30)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            if node.lineno <= line <= last and last - node.lineno <= best[1] - best[0]:
                best = (node.lineno, last)
    return best if best[1] < 1 << 30 else (line, line)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that can change. `rank` orders the draw; it depends on the line's text, not on its number."""

    rank: str
    file: str
    number: int
    sites: list[Site]

    def mutant(self, root: Path) -> Mutant | None:
        """The one change that the draw picks in this line. An operator is picked first, so that constants do not outnumber the rest."""
        text = (root / self.file).read_text()
        raw, number = text.encode(), int(self.rank, 16)
        operators = sorted({site.operator for site in self.sites})
        of_operator = [site for site in self.sites if site.operator == operators[number % len(operators)]]
        site = of_operator[number // 64 % len(of_operator)]
        after = (raw[: site.start] + site.new.encode() + raw[site.stop :]).decode()
        try:
            ast.parse(after)
        except SyntaxError:
            return None
        first, last = _statement_lines(ast.parse(text), self.number)
        was, became = (t.splitlines()[self.number - 1].strip() for t in (text, after))
        return Mutant(self.rank[:10], self.file, self.number, first, last, *astuple(site), was, became)


def lines_of(path: Path, root: Path, seed: int) -> Iterator[Line]:
    """The lines of a file that can change."""
    text, file = path.read_text(), str(path.relative_to(root))
    raw, texts = text.encode(), text.splitlines()
    by_line: dict[int, list[Site]] = defaultdict(list)
    for site in Sites(text).found:
        if b"\n" not in raw[site.start : site.stop]:
            by_line[raw[: site.start].count(b"\n") + 1].append(site)
    seen: dict[str, int] = defaultdict(int)
    for number, found in sorted(by_line.items()):
        was = texts[number - 1].strip()
        seen[was] += 1
        key = f"{seed}|{file}|{was}|{seen[was]}"
        yield Line(hashlib.blake2b(key.encode(), digest_size=8).hexdigest(), file, number, found)


def draw(root: Path, seed: int) -> list[Line]:
    """All lines below `root`/dysharp that can change, in the order of the draw."""
    found = [line for path in sorted((root / "dysharp").rglob("*.py")) for line in lines_of(path, root, seed)]
    return sorted(found, key=lambda x: x.rank)
