"""Examples of every command, for `--help` and the reference page."""

import tomllib
from pathlib import Path

EXAMPLES: dict[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Command -> lines that can be typed."""
