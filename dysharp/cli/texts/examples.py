"""Examples of every command, for `--help` and the reference page."""

import tomllib
from pathlib import Path

import click

EXAMPLES: dict[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Command -> lines that can be typed."""


def add_examples(group: click.Group, above: str = "") -> None:
    """Put the examples of each command at the end of its help."""
    for name, command in group.commands.items():
        path = f"{above} {name}".strip()
        if path in EXAMPLES:
            command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[path])
        if isinstance(command, click.Group):
            add_examples(command, path)
