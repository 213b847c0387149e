"""Formulas of operator time: GEMM tiles for Programs, closed forms for measurements."""

from dysharp.costs.attention import AttentionCall, Direction, attention_flops
from dysharp.costs.collectives import alltoall_start_us, collective_us, flight_us, link_us
from dysharp.costs.exchange import NORMAL_SMS, ExchangeWay, kernel_us
from dysharp.costs.gemm import GemmTask, Tiling, gemm_gang, mean_share, narrow_bytes, tile_share, tile_task, weight_grad_gang, weight_grad_task
from dysharp.costs.layer import SPARSE_HEADS, OpTime, Routed, cast_us, gradients, kernels, machine_format, product, rows_of
from dysharp.costs.machine import NCCL_AND_OWN, WIDENED_ROWS, Machine, Reducers, machine_of, number
from dysharp.costs.moe import host_constant, permute_us
from dysharp.costs.operators import arch_of, hbm_us, launch_us, light_us, memory_kernel_us
