"""docs/regimes.md shows `costs/regimes.toml`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

from dysharp.base.text import cell
from dysharp.costs.regime import Name, Regime, regime_of
from dysharp.serving.engine import engine_of
from dysharp.show.markdown import table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "regimes.md"


def regimes() -> str:
    """The table: fields as rows, regimes as columns."""
    names = get_args(Name)
    return table(("field", *names), [[one.name, *(cell(getattr(regime_of(name), one.name)) for name in names)] for one in fields(Regime)[1:]])


def test_the_page_shows_the_regimes() -> None:
    assert regimes() in PAGE.read_text(), "write it anew: python tests/docs/test_regimes.py prints the table"
    fused = ["mxfp4" in engine_of(name).fused_experts for name in ("vllm", "sglang", "trtllm")]  # others have the kernel of `narrow`
    assert ("engines give MXFP4 on Blackwell to trtllm-gen" in PAGE.read_text()) == all(fused)


if __name__ == "__main__":
    print(regimes())
