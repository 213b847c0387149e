"""No area and no hardware block moves unnoticed: regression values over clusters of unequal sizes, and texts of blocks and proofs."""

from __future__ import annotations

import json

import pytest

from dysharp.silicon.rtl.blocks import BLOCKS
from tests.silicon.stored_silicon import AREAS, TEXTS, amaranth_version, area_rows, block_rows
from tests.stored_values import check


def test_areas_are_the_stored_ones() -> None:
    check(AREAS, dict(area_rows()))


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_and_proofs_are_the_stored_ones(name: str) -> None:
    pytest.importorskip("amaranth", reason="needs the extra rtl")
    if json.loads(TEXTS.read_text())["version"]["amaranth"] != amaranth_version():
        pytest.skip("the stored texts are of another version of Amaranth")
    check(TEXTS, dict(block_rows(name)), name)
