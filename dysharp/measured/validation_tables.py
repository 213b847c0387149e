"""Columns of the tables of `Validation` (`data/validation_tables.toml`): the screen, the page and its CSV files read them."""

from pathlib import Path
from typing import NamedTuple

from dysharp.base import Texts, read_toml
from dysharp.base.columns import KEPT, Column, Columns, column


class Table(NamedTuple):
    """Columns of a table; the name of its CSV file beside the page, and what that holds; "" without a file."""

    columns: Columns
    file: str
    meaning: str


def _table(columns: str, csv: Texts = (), file: str = "", meaning: str = "") -> Table:
    every: list[Column] = [column(word) for word in columns.split()]
    return Table(Columns(*(one._replace(place=KEPT * (one.name in csv)) for one in every)), file, meaning)


TABLES = {name: _table(**entry) for name, entry in read_toml(Path(__file__).with_name("data") / "validation_tables.toml").items()}
"""{field of `Validation`: its table}, and some of their parts."""
