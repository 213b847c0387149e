"""The exceptions. Every message is one line. It names the place, the value found and the value expected."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar, TypeVar

T = TypeVar("T")


def one_line(text: str) -> str:
    """`text` with every unprintable character (newlines, control codes, lone surrogates) escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(text: str, most: int = 1500) -> str:
    """`text` without its middle where it has more than `most` characters: messages quote names and values of any length."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[-most // 3 :]}"


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxdict, _REPR.maxlist, _REPR.maxstring, _REPR.maxother = 2, 3, 3, 60, 60


def show(value: object) -> str:
    """A short one-line rendering of any value that came from a file."""
    try:
        return _REPR.repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python prints
        return f"a huge {type(value).__name__}"


class DysharpError(Exception):
    """Base of all errors that a caller may want to catch. The command line returns `exit_code`."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        # Messages quote text from files. Escaping here keeps the message of every subclass on one line.
        super().__init__(one_line(shortened(message)))


class ConfigError(DysharpError):
    """Wrong input: a name, a file, a value. Exit code 2."""

    exit_code = 2


class OverShare(ConfigError):
    """A run that fits into the memory of the computer, but not into its part while other processes run. Exit code 2.

    `part`: the part of the memory that the task needs.
    """

    def __init__(self, message: str, part: float = 1.0) -> None:
        super().__init__(message)
        self.part = part


class ProgramError(DysharpError):
    """A Program that breaks a rule of the verifier. Exit code 1."""


class SimulationError(DysharpError):
    """A run that cannot finish, such as a deadlock. Exit code 1."""


class EmulationMismatch(DysharpError):
    """An emulated tensor that differs from its reference. Exit code 1."""


class IsaError(DysharpError):
    """A packet that cannot be encoded or decoded: a field out of range, damage, a broken rule. Exit code 1."""


class MissingExtra(DysharpError):
    """An optional dependency that is not installed. Exit code 2."""

    exit_code = 2

    @classmethod
    def needs(cls, what: str, extra: str) -> MissingExtra:
        """The error for `what` (a command or function) that needs the optional group `extra`."""
        return cls(f"{what} needs the extra \"{extra}\": pip install 'dysharp[{extra}]'")


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error message: `; did you mean "x"?`, or the list of valid names if no name is close.

    The comparison ignores case. The result is `; there is none` when `names` is empty.
    """
    known = {n.casefold(): n for n in sorted(names)}
    # difflib takes quadratic time, so an error about a megabyte of garbage compares its beginning only.
    folded = name[:200].casefold()
    begins = [n for n in known if folded and n.startswith(folded)]
    close = begins[:1] or difflib.get_close_matches(folded, known, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{known[close[0]]}"?'
    return "; expected one of " + ", ".join(known.values()) if known else "; there is none"


def check_word(word: object, known: Collection[str], found: str) -> None:
    """Raises ConfigError with the text `found` and the end of `nearest`, unless `known` has `word`."""
    if word not in known:
        raise ConfigError(f"{found}{nearest(str(word), known)}")


def entry_of(word: str, table: Mapping[str, T], found: str) -> T:
    """What `table` has of `word`. Raises ConfigError as `check_word`."""
    check_word(word, table, found)
    return table[word]
