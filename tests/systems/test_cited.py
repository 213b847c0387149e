"""Numbers that are cited from a library: a change of one is a change of the source, not of the model."""

from __future__ import annotations

from dysharp.systems import hybrid_ep


def test_defaults_of_hybrid_ep() -> None:
    """DeepEP, branch hybrid-ep: tokens of a chunk, rows in flight of an SM, an FP32 probability."""
    assert (hybrid_ep.CHUNK_TOKENS, hybrid_ep.IN_FLIGHT, hybrid_ep.PROB_BYTES) == (64, {"store": 8, "read": 10}, 4)
