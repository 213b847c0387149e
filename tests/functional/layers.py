"""Small layers for the tests of the functional machine."""

from dysharp.testing.conformance.tensors import LayerCase, layer_case, run_case

__all__ = ["LayerCase", "layer_case", "run_case"]
