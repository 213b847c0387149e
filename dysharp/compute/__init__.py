"""Formulas of operator time."""

from dysharp.compute.gemm import Task, Tiling, gemm_gang, mean_share, tile_share, tile_task, weight_grad_gang, weight_grad_task

__all__ = ["Task", "Tiling", "gemm_gang", "mean_share", "tile_share", "tile_task", "weight_grad_gang", "weight_grad_task"]
