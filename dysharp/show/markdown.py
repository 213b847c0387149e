"""Templates of pages. Text from files as Markdown: it is shown as it is, and makes no link, image, heading, table cell or HTML of its own."""

from collections.abc import Iterable, Sequence
from typing import Any

from dysharp import __version__
from dysharp.base import MODEL_VERSION, AnyMapping, one_line

_MARKS = (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("[", "\\["), ("]", "\\]"))
_BLOCKS = ("#", "```", "~~~", "    ")  # at the begin of a line: heading, fenced code, indented code


def template(name: str, **filters: Any) -> Any:
    """A file of `templates/`. What it prints is escaped where it is HTML; in Markdown the caller escapes. `filters`: further filters, by name."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader, is_html = PackageLoader("dysharp.show", "templates"), name.endswith(".html")
    environment = Environment(loader=loader, autoescape=is_html, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= filters
    return environment.get_template(name)


def page(name: str, filters: AnyMapping, /, **values: Any) -> str:
    """A page of a file of `templates/`, `values` and the versions filled in. Text of files and options is escaped."""
    return str(template(name, **filters).render(version=__version__, model_version=MODEL_VERSION, **values))


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
    """A table. The cells are escaped, the names of the columns are not but for their line ends."""
    rows = [f"| {' | '.join(columns)} |".replace("\n", " "), "|" + "---|" * len(columns)]
    return "\n".join([*rows, *(f"| {' | '.join(map(escaped, line))} |" for line in lines)])
