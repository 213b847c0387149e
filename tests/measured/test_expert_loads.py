"""Loads of the busiest rank."""

from __future__ import annotations

from dysharp.measured.expert_loads import busiest_rank


def test_busiest_rank():
    assert busiest_rank(4, 64, 2, 32, "balanced") == (64.0, 16.0)
    assert busiest_rank(4, 64, 2, 1, "balanced") == (2.0, 2.0)
    rows, touched = busiest_rank(8, 256, 8, 4096, "power_law_1.01")
    assert rows > 1.2 * 4096 * 8
    assert 0 < touched <= 32
    assert busiest_rank(8, 256, 8, 4096, "power_law_1.01") == (rows, touched)
    # A token chooses an expert once: no load is above the number of tokens.
    assert busiest_rank(2, 2, 2, 100, "power_law_sampled_1.9") == (200.0, 1.0)
