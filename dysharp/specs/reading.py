"""Where the packaged specs lie."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
"""The folder of packaged specs."""
