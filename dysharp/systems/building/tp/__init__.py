"""Blocks of tensor-parallel sub-layers: how they are cut, what computes, and the ways of their chunks."""
