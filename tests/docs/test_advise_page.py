"""The tables of docs/advise.md hold what the commands above them print."""

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
def test_systems() -> None:
    found = rows_under("| system | layer us |")
    done = ds.compare([name for name, _ in found], tokens=256, routing="uniform", **LAYER)
    assert [[row.system, f"{row.time_us:.1f}"] for row in done.rows] == found


@pytest.mark.slow
def test_the_critical_path() -> None:
    found = rows_under("| system | dispatch | GEMMs |")
    for cells in found:
        options = {"deepep": {"n_sm": 20}, "hybrid-ep": {"n_sm": 16}}.get(cells[0], {})
        row = ds.run(cells[0], tokens=256, options=options, **LAYER)
        path = row.path_us
        values = (path["dispatch"], path["gemm1"] + path["gemm2"], path["combine"], path["other"], row.time_us - row.simulated_us, row.time_us)
        assert [f"{us:.1f}" for us in values] == cells[1:], cells[0]
    assert len(found) == 6


@pytest.mark.slow
def test_the_surroundings() -> None:
    parts = ("permute_us", "activation_us", "cast_us", "launch_us")
    for tokens, name, *cells in (found := rows_under("| tokens per GPU | pass | simulated |")):
        row = ds.run("deepep", tokens=int(tokens), direction={"forward": "fwd", "backward": "bwd"}[name], **LAYER)
        assert cells == [f"{row.simulated_us:.2f}", *(f"{row.surroundings_us[p]:.1f}" for p in parts), f"{row.time_us:.2f}", f"{row.eager_us:.2f}"]
    assert len(found) == 4
