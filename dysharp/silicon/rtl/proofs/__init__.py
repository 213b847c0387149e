"""Proofs by block. The order list is part of every table."""

from dysharp.base.values import frozen
from dysharp.silicon.rtl.formal import OrderProof, proves
from dysharp.silicon.rtl.proofs.counters import NoticeProof, TileProof
from dysharp.silicon.rtl.proofs.hub_proofs import DamProof, RowProof, TlbProof
from dysharp.silicon.rtl.proofs.packets import PacketProof
from dysharp.silicon.rtl.proofs.switch_proofs import MergeProof, ReductionProof, TargetProof

PROOFS: dict[str, tuple[type, ...]] = {
    "reduction-table": (OrderProof, ReductionProof), "target-logic": (TargetProof,), "tile-status": (OrderProof, TileProof),
    "output-readiness": (OrderProof, NoticeProof), "al-tlb": (OrderProof, TlbProof), "row-allocation": (RowProof,),
    "packet-manager": (PacketProof,), "readiness": (DamProof,), "merge-unit": (OrderProof, MergeProof),
}  # fmt: skip


@frozen
class Proven:
    """A proof that was run. `cycles`: 0 = by induction, for all times; otherwise that many cycles from reset."""

    block: str
    promise: str
    assumed: str
    cycles: int
    holds: bool


def prove(block: str) -> list[Proven]:
    """Run the proofs of a block. The docstring of a proof says what it promises and what it assumes."""
    done = []
    for proof in PROOFS[block]:
        promise, _, assumed = " ".join((proof.__doc__ or "").replace("No assumption", "Assumed: nothing").split()).partition(" Assumed: ")
        done.append(Proven(block, promise.rstrip("."), assumed.rstrip("."), getattr(proof, "bound", 0), proves(proof())))
    return done
