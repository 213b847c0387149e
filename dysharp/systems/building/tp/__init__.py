"""Blocks of tensor-parallel sub-layers: how they are cut, what computes, and the ways of their chunks."""

from dysharp.systems.building.tp.sublayer import GATHERED, PARTIAL, ROWS, SUM, Machine
from dysharp.systems.building.tp.ways import SUMS, Ways, sub_layer
