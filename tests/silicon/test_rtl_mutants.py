"""Promises are proven, and faults planted in the blocks are found."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth", reason="needs the extra rtl")
pytest.importorskip("pyosys", reason="needs the extra rtl")

from dysharp.silicon.rtl.blocks import BLOCKS
from dysharp.silicon.rtl.formal import prove
from dysharp.testing.block_faults import COMPARED, PROVEN, Fault, _differs, _has_no_proof


@pytest.mark.sampled
@pytest.mark.parametrize("name", BLOCKS)
def test_promises_are_proven(name: str) -> None:
    proofs = prove(name)
    assert all(proof.holds and proof.promise and proof.assumed for proof in proofs), proofs


@pytest.mark.parametrize("name", BLOCKS)
def test_faults_are_planted_in_every_block(name: str) -> None:
    assert name in {fault.block for fault in COMPARED} & {fault.block for fault in PROVEN}


@pytest.mark.slow
@pytest.mark.parametrize("fault", COMPARED, ids=lambda fault: fault.block)
def test_the_comparison_finds_a_fault(fault: Fault) -> None:
    assert _differs(fault), fault


@pytest.mark.slow
@pytest.mark.parametrize("fault", PROVEN, ids=lambda fault: fault.block)
def test_a_fault_has_no_proof(fault: Fault) -> None:
    assert _has_no_proof(fault), fault
