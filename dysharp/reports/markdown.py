"""Text from files as Markdown: the text is shown as it is, and makes no link, image, heading, table cell or HTML of its own."""

from collections.abc import Iterable, Sequence

from dysharp.errors import one_line

_MARKS = (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("[", "\\["), ("]", "\\]"))
_BLOCKS = ("#", "```", "~~~", "    ")  # at the begin of a line: heading, fenced code, indented code


def escaped(text: str) -> str:
    """`text` on one line, for a table cell or inside a sentence. Backticks keep their meaning."""
    text = one_line(" ".join(text.split("\n")))
    for mark, safe in _MARKS:
        text = text.replace(mark, safe)
    return text


def paragraph(text: str) -> str:
    """`text` on one line, for a line of its own."""
    safe = escaped(text)
    return f"\\{safe.lstrip()}" if safe.startswith(_BLOCKS) else safe


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table. The cells are escaped, the names of the columns are not."""
    rows = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join([*rows, *(f"| {' | '.join(map(escaped, line))} |" for line in lines)])
