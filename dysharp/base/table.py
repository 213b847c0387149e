"""Tables without lines, by rich: columns where they fit, else a block of lines per row, so that no number is ever cut."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Column, Table
from rich.text import Text

from dysharp.base.errors import one_line


class _Numbers(Table):
    """A table that cuts no number: where the terminal is too narrow, each row is a block of lines `heading  value`."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if sum(self._column_width(column) for column in self.columns) + self.padding[1] * (len(self.columns) - 1) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        headings = [" ".join(_plain(column.header).split()) for column in self.columns]
        cells = [[_plain(cell) for cell in column.cells] for column in self.columns]
        for row in zip(*cells, strict=True):
            yield fact_table((heading, cell) for heading, cell in zip(headings, row, strict=True) if cell)
            yield Text()

    def _column_width(self, column: Column) -> int:
        lines = [line for text in (column.header, *column.cells) for line in _plain(text).split("\n")]
        whole = column.no_wrap or column.justify == "right"
        return max((cell_len(part) for line in lines for part in ([line] if whole else line.split()[:1])), default=0)


def _plain(text: Any) -> str:
    return text.plain if isinstance(text, Text) else str(text)


def plain_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, text: Collection[str] = (), gap: int = 2, fold: bool = True
) -> Table:
    """A table without lines, on a console of any width.

    The first `left` columns and those with a heading in `text` are text, the others numbers. `fold`: long text continues on the next line.
    """
    table = _Numbers(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for column, heading in enumerate(headings):
        justify: JustifyMethod = "left" if column < left or heading in text else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not fold)
    for row in rows:
        table.add_row(*map(one_line, row))
    return table


def fact_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Name and value, one pair a line."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(one_line(name), one_line(text))
    return table
