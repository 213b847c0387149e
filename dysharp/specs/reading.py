"""The folder of packaged specs, and the readers of their files (`dysharp.base.reading`)."""

from pathlib import Path

from dysharp.base.reading import MAX_FILE_BYTES, decode_utf8, parse_json, parse_toml, parse_yaml, read_text, read_toml

__all__ = ["DATA", "MAX_FILE_BYTES", "decode_utf8", "parse_json", "parse_toml", "parse_yaml", "read_text", "read_toml"]
DATA = Path(__file__).parent / "data"
"""The folder of packaged specs."""
