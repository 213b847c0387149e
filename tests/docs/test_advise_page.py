"""The table of surroundings in docs/advise.md holds what the command above it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

import dysharp as ds

PAGE = Path(__file__).parents[2] / "docs" / "advise.md"
LAYER = {"model": "deepseek-v3", "cluster": "hw-dgx-h100"}


def rows_under(head: str) -> list[list[str]]:
    """The cells of the table whose first line begins with `head`."""
    lines = PAGE.read_text().split(f"\n{head}", 1)[1].split("\n")[2:]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    return cells[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]


@pytest.mark.slow
def test_the_surroundings() -> None:
    parts = ("permute_us", "activation_us", "cast_us", "launch_us")
    for tokens, name, *cells in (found := rows_under("| tokens per GPU | pass | simulated |")):
        row = ds.run("deepep", tokens=int(tokens), direction={"forward": "fwd", "backward": "bwd"}[name], **LAYER)
        assert cells == [f"{row.simulated_us:.2f}", *(f"{row.surroundings_us[p]:.1f}" for p in parts), f"{row.time_us:.2f}", f"{row.eager_us:.2f}"]
    assert len(found) == 4
