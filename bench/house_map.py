"""Rooms and who imports whom: rooms are the folders right below the package, and its loose files."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from house_tokens import room_of

Graph = Mapping[str, set[str]]


def file_imports(root: Path) -> dict[str, set[str]]:
    """{module: modules of the package that it imports}, also inside functions and for type checking."""
    files = {module_of(path, root): path for path in sorted((root / "dysharp").rglob("*.py"))}
    return {name: set(_imported(path, files.keys())) - {name} for name, path in files.items()}


def room_imports(root: Path, imports: Graph) -> dict[str, set[str]]:
    """{room: other rooms that it imports}."""
    package = root / "dysharp"
    rooms = {module_of(path, root): room_of(path, package) for path in package.rglob("*.py")}
    out: dict[str, set[str]] = {room: set() for room in rooms.values() if room}
    for name, others in imports.items():
        if rooms[name]:
            out[rooms[name]] |= {rooms[other] for other in others} - {rooms[name], ""}
    return out


def circles(graph: Graph) -> list[list[str]]:
    """Sets of nodes that reach each other (strongly connected, two or more)."""
    reached = {node: _reached(graph, node) for node in graph}
    groups = {tuple(sorted(other for other in reached[node] if node in reached[other])) for node in graph if node in reached[node]}
    return sorted(list(group) for group in groups)


def _reached(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += graph[node]
    return seen


def module_of(path: Path, root: Path) -> str:
    """Dotted name of a file of the checkout `root`."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path, known: Container[str]) -> Iterator[str]:
    """Modules that a file names in its imports; `from package import name` is module `package.name` where there is one."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in full]
        yield from (name for name in names if name in known)
