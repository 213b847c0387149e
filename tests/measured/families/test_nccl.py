"""Sizes of collectives."""

from __future__ import annotations

import pytest

from dysharp.measured.families.nccl import _message_bytes
from dysharp.measured.family import classify
from tests.measured.csv_lines import line, read


@pytest.mark.parametrize(
    ("config", "n_bytes"),
    [({"bytes": 2097152}, 2 << 20), ({"size": "16MiB"}, 16 << 20), ({"bytes_label": "33M"}, 32 << 20), ({"bytes_label": "8G"}, 8 << 30)],
)
def test_message_sizes(config, n_bytes):
    (row,) = read(line(kind="nccl_all_reduce", config=config))
    assert _message_bytes(row) == n_bytes


def test_rows_of_operators_name_their_collective() -> None:
    """The columns of a table of operators: kind "nccl", the collective in `op`."""
    config = {"bytes": 2 << 20, "gpus": 4}
    rows = read(line("a", kind="nccl", config=config | {"op": "all_gather"}), line("b", kind="nccl_all_gather", config=config))
    first, second = classify(rows).parsed
    assert (first.family.name, first.case) == ("nccl", second.case)
