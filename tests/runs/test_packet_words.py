"""Packet level says beforehand how long it takes; a table that is too small is named with its cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dysharp as ds
from dysharp.runs.packet_time import estimate_line, packet_time
from dysharp.specs import load_cluster

SMALL: dict[str, Any] = {"model": "S-8", "gpus": 4, "tokens": 64, "routing": "uniform"}


@pytest.mark.parametrize(
    ("packets", "gpus", "text"),
    [
        (1e5, 8, "about 1e+05 packets on links, about 1 s (an estimate, right within a factor of 2)"),
        (1e7, 8, "about 1e+07 packets on links, about 18 s ("),
        (1e8, 72, "about 1e+08 packets on links, about 10 minutes ("),
        (1e10, 72, "about 1e+10 packets on links, about 17.3 hours ("),
    ],
)
def test_the_estimate_names_its_unit(packets: float, gpus: int, text: str) -> None:
    assert estimate_line(packets, gpus).startswith(f"packet level: {text}")


def test_the_estimate_counts_systems_passes_and_leading_tokens() -> None:
    def packets(systems: list[str], **more: Any) -> float:
        line = packet_time(systems, fidelity="packet", **(SMALL | {"tokens": 2048} | more))
        return float(line.split()[3])

    one = packets(["deepep"])
    assert packets(["deepep", "comet"]) == pytest.approx(2 * one, rel=0.1)
    assert packets(["deepep"], direction="both") == pytest.approx(2 * one, rel=0.1)
    assert packets(["deepep"], window=512) == pytest.approx(2.5 / 4 * one, rel=0.1)
    assert packets(["dysharp"]) < one
    assert packet_time(["deepep"], **SMALL) == ""


def test_a_too_small_table_is_named_at_burst_level() -> None:
    tiny = replace(load_cluster("paper-gh200-nvl32"), al_tlb_entries=8)
    found, fine = (ds.run("dysharp", cluster=cluster, **SMALL) for cluster in (tiny, "paper-gh200-nvl32"))
    told = [text for text in found.warnings if "AL TLB of 8 entries per GPU is too small" in text]
    assert len(told) == 1
    assert told[0].startswith("dysharp: ")
    assert "times as long as with entries for all rows; an entry may be read again for each packet of a row; only" in told[0]
    assert not any("AL TLB" in text for text in fine.warnings)
    assert found.blocks == {}
    assert found.time_us > fine.time_us


@pytest.mark.slow
def test_sums_that_leave_the_switch_early_are_named() -> None:
    """The table of a port holds 256 sums. Eight blocks of PyTorch's kernels ask for 57 at a port, all sums of 8 MiB are more."""
    held, free = (
        ds.run("nvls-two-shot", cluster="hw-dgx-h100", workload="all-reduce:8MiB", fidelity="packet", options={"blocks": blocks}) for blocks in (8, 0)
    )
    assert not any("left the" in line for line in held.header)
    assert [line.partition(" sums of packets ")[2] for line in free.header if "left the" in line] == [
        "left the 256 entries of their port before their last part, which went on alone; --fidelity burst has no such table"
    ]
    assert free.time_us > 1.1 * held.time_us


@pytest.mark.parametrize(("system", "entries", "tokens"), [("dysharp", 8, 32), ("hub-sharp", 32, 512)])  # hub-sharp: only pulls look rows up
def test_compare_names_the_table_at_packet_level(system: str, entries: int, tokens: int) -> None:
    tiny = replace(load_cluster("paper-gh200-nvl32"), al_tlb_entries=entries)
    done = ds.compare(["deepep", system], cluster=tiny, fidelity="packet", **(SMALL | {"tokens": tokens}))
    told = [line for line in done.header if f"AL TLB of {entries} entries per GPU is too small: a row is read" in line]
    assert len(told) == 1
    assert told[0].startswith(f"warning: {system}: ")


def test_a_table_that_costs_nothing_is_not_too_small() -> None:
    """Rows were read again, 1.7 times each, and the layer took 0.98 times as long."""
    done = ds.run("dysharp", model="S-8", gpus=8, tokens=128, routing="uniform", fidelity="packet")
    assert done.blocks is not None
    assert done.blocks["al_tlb"]["misses"] > 1.05 * 128 * 8 * 8
    assert not any("too small" in line for line in done.header)
