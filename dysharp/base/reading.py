"""Files of users to plain values: the one opener, and strict, bounded reading of TOML and JSON. Errors are one line with line and column."""

import json
import os
import re
import stat
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

from dysharp.base.errors import ConfigError, show
from dysharp.base.units import MiB

MAX_FILE_BYTES = 16 * MiB
MAX_DIGITS = 300
"""Digits of an integer in a file: a longer one has no `float`, and overflows wherever it meets one."""
_LONG_INTEGER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
MAX_DEPTH = 100
"""Tables or lists inside each other."""


def read_text(path: Path, most: int = MAX_FILE_BYTES) -> str:
    """The text of a regular UTF-8 file of at most `most` bytes, without numbers above `MAX_DIGITS` digits. Raises `ConfigError` for another file."""
    data, where = read_bytes(path, most), show_path(path)
    if long := _LONG_INTEGER.search(data):
        line = data.count(b"\n", 0, long.start()) + 1
        raise ConfigError(f"{where}: line {line}: found a number of more than {MAX_DIGITS} digits, expected at most {MAX_DIGITS} digits")
    return decode_utf8(data, where)


def read_bytes(path: Path, most: int) -> bytes:
    """A regular file of at most `most` bytes. Raises `ConfigError` for any other file."""
    where = show_path(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            data: bytes | None = file.read(most + 1) if size <= most else b""
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from None
    if data is None:  # a file of /proc that waits for what the kernel says next
        raise ConfigError(f"{where}: cannot be read: found no data and no end, expected a file that does not wait")
    if max(size, len(data)) > most:
        raise ConfigError(f"{where}: found {max(size, len(data))} bytes, expected at most {most}")
    return data


def open_regular(path: Path) -> BinaryIO:
    """A regular file, open for reading. Raises `ConfigError` for another kind of file, and what `open` raises."""
    try:
        file = open(path, "rb", opener=open_without_waiting)  # noqa: SIM115  the caller closes it
    except ValueError as error:  # a NUL in the name
        raise ConfigError(f"{show_path(path)}: cannot be read: {error}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ConfigError(f"{show_path(path)}: not a regular file")
    return file


def open_without_waiting(path: str, flags: int) -> int:
    """The opener of `open` for a file of unknown kind: without O_NONBLOCK the opening of a named pipe waits for a writer, maybe for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def decode_utf8(data: bytes, where: str) -> str:
    """The text of UTF-8 bytes, without a leading byte-order mark. Raises `ConfigError` for other bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise ConfigError(f"{where}: line {line} column {column}: found byte 0x{data[error.start]:02x}, expected UTF-8 text") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The table of a TOML text. Raises `ConfigError` with line and column."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: malformed TOML: {_toml_reason(error, text)}") from None
    check_bounded(table, where)
    return table


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a file, which errors call by its name without folders."""
    return parse_toml(read_text(path), path.name)


def _toml_reason(error: Exception, text: str) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if not isinstance(error, tomllib.TOMLDecodeError):  # tomllib passes on errors of int() and datetime()
        return str(error)
    line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    return str(error).replace("(at end of document)", f"(at line {line}, column {column}, the end)")


def parse_json(text: str, where: str, *, constants: bool = True) -> dict[str, Any]:
    """The object of a JSON text. Raises `ConfigError` as `json_of`, and for values beyond `check_bounded`."""
    value = json_of(text, where, constants=constants)
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: found {show(value)}, expected a JSON object")
    check_bounded(value, where)
    return value


def json_of(text: str, where: str, *, constants: bool = False) -> Any:
    """The value of a JSON text. `constants`: NaN and Infinity are numbers.

    Raises `ConfigError`, with line and column, for malformed JSON, a key that stands twice in an object, and numbers that JSON does not have.
    """
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=float if constants else _no_number)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: malformed JSON: {error.msg} (at line {error.lineno}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{where}: malformed JSON: {reason}") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"found the key {show(twice)} twice, expected it once")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"found {text}, expected a number")


_YAML_LINE = re.compile(r"(\s*)(?:(- )\s*)?(?:([\w.\-]+):(?:\s+|$))?(.*)")
_FLOW = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^\s,:\[\]{}'\"][^,:\[\]{}'\"]*)")


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Nested mappings, lists of scalars, and the flow style of both: the part of YAML that settings use. A scalar is a text without its quotes, a key
    without a value an empty mapping; comments are left out, and mappings in a list are those of their key. Raises `ConfigError` with the line.
    """
    found: dict[str, Any] = {}
    above, key = [(-1, found)], ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw).rstrip()
        if not line.strip() or line.strip() in ("---", "..."):
            continue
        match = _YAML_LINE.fullmatch(line)
        name, value = (match[3] or "", match[4].strip()) if match else ("", "")
        try:
            if match and match[2] and not name and key:
                holder = above[-1][1] if key in above[-1][1] else above[-2][1]
                holder[key] = holder[key] if isinstance(holder[key], list) else []
                holder[key].append(_yaml_value(value))
            elif not match or not name:
                raise ValueError(f"found {show(line.strip())}, expected a key and a value")
            else:
                indent, key = len(match[1]) + len(match[2] or ""), name
                while above[-1][0] >= indent:
                    above.pop()
                above[-1][1][key] = _yaml_value(value) if value else {}
                above += [] if value else [(indent, above[-1][1][key])]
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{where}, line {number}: {error}") from None
    check_bounded(found, where)
    return found


def _yaml_value(text: str) -> Any:
    if not re.fullmatch(r"\[.*\]|{.*}", text):
        return text.strip("'\"")
    return json_of(_FLOW.sub(lambda match: json.dumps((match[1] or match[2] or match[3] or "").strip()), text), text)


def check_bounded(value: Any, where: str) -> None:
    """Raise `ConfigError` for a parsed value with an integer above `MAX_DIGITS` digits, or nested deeper than `MAX_DEPTH`."""
    limit, level, depth = 10**MAX_DIGITS, [value], 0
    while level:
        for item in level:
            if isinstance(item, int) and abs(item) >= limit:
                raise ConfigError(f"{where}: found an integer of more than {MAX_DIGITS} digits, expected at most {MAX_DIGITS} digits")
        if depth > MAX_DEPTH:
            raise ConfigError(f"{where}: found values nested deeper than {MAX_DEPTH}, expected at most {MAX_DEPTH} levels")
        lists = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level, depth = [inner for items in lists for inner in items], depth + 1


def show_path(path: Path) -> str:
    """A path as messages show it. The error itself escapes unprintable characters."""
    return str(path)
