"""Automatic windows where links take no time: they cover the time of the responder, so shorter links are no slower."""

from __future__ import annotations

import pytest

import dysharp


@pytest.mark.parametrize("system", ["explicit", "dysharp"])
def test_shorter_links_are_not_slower(system: str) -> None:
    layer = {"model": "S-8", "gpus": 8, "tokens": 128, "routing": "uniform"}
    us = [dysharp.run(system, cluster=f"paper-gh200-nvl32,link_latency_ns={ns}", **layer).time_us for ns in (0, 50, 250)]
    assert max(us[:2]) < 1.03 * us[2], us
