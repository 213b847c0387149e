"""Formulas of operator time."""

from dysharp.compute.gemm import Tiling, gemm_gang, tile_task_ps, weight_grad_gang, weight_grad_task_ps

__all__ = ["Tiling", "gemm_gang", "tile_task_ps", "weight_grad_gang", "weight_grad_task_ps"]
