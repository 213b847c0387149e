"""Packets of one switch port of runs at packet level through the reduction table."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth", reason="needs the extra rtl")

from dysharp.api.port_trace import _port_steps, trace_port
from dysharp.base.errors import SimulationError
from dysharp.silicon.rtl.blocks import PortStep
from dysharp.silicon.rtl.reduction_table import replay


@pytest.mark.parametrize(("model", "routing"), [("S-8", "uniform"), ("deepseek-v2-lite", "trace:deepseek-v2-lite")])
def test_block_protocol_and_packet_level_agree(model: str, routing: str) -> None:
    """A table of six sessions evicts; results, bypasses, evictions and sums are equal, step by step."""
    done = trace_port(model, routing, entries=6, tokens=32)
    seen = done.checked.seen
    assert (seen["result"], seen["bypass"], seen["eviction"]) == (done.results, done.bypasses, done.evictions)
    assert min(done.results, done.bypasses, done.evictions) > 0
    assert seen["request"] + seen["response"] == len(done.steps)


def test_a_step_that_differs_is_named() -> None:
    steps = [PortStep("request", 0, 2, ""), PortStep("response", 0, 1, "result")]
    with pytest.raises(SimulationError, match="step 1 of the port: the packet level has 'result', the protocol ''"):
        replay(steps, 2)


def test_a_large_table_evicts_nothing() -> None:
    outcomes = {step.outcome for step in _port_steps("S-8", "uniform", 64, 4, 8, 0)}
    assert outcomes == {"", "result"}
