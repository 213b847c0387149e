"""Formulas of operator time: GEMM tiles for Programs, closed forms for measurements."""

from dysharp.costs.gemm import GemmTask, Tiling, gemm_gang, mean_share, tile_share, tile_task, weight_grad_gang, weight_grad_task

__all__ = ["GemmTask", "Tiling", "gemm_gang", "mean_share", "tile_share", "tile_task", "weight_grad_gang", "weight_grad_task"]
