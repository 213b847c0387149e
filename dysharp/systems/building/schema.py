"""Buffers and functions of a MoE layer. The key of an op is its token; the key of a GEMM is its tile."""

from dysharp.program import Buffer, Function, Schema

EXPERT, PARTIAL, RELAY, RELAY_ROW, RELAY_PARTIAL = "expert", "partial", "relay", "relay.row", "relay.partial"
"""Names of regions. Every expert slot has one region `EXPERT`."""
_TOKEN, _ROW = "token, on its source GPU", "useful (token, expert)"
_RESULTS, _ARRIVED = ("expert.y", "expert.dx"), ("expert.x", "expert.dy")

LAYER_SCHEMA = Schema(
    buffers=(
        *(Buffer(name, _TOKEN, "hidden") for name in ("x", "dy", "y", "dx")),
        *(Buffer(f"expert.{name}", _ROW, "hidden", EXPERT, tiled=True) for name in ("x", "y", "dy", "dx")),
        *(Buffer(f"expert.{name}", _ROW, "hidden of an expert", EXPERT, tiled=True) for name in ("a", "dh")),
        Buffer("partial", "(token, GPU); with fn row: (token, expert)", "hidden", PARTIAL, "work"),
        Buffer("relay", "(token, remote domain), on the GPU that forwards it", "hidden", RELAY),
        Buffer("relay.row", "(token, expert) with two hops, on the GPU that forwards it; its key is the row of partial", "hidden", RELAY_ROW),
        Buffer("relay.partial", "(token, GPU), on the GPU that adds those of its domain", "hidden", RELAY_PARTIAL, "work"),
        Buffer("w1.grad", "weight of an expert", "hidden x hidden of an expert", dtype="work"),
        Buffer("w2.grad", "weight of an expert", "hidden x hidden of an expert", dtype="work"),
    ),
    functions=(
        Function("copy", ("PUT", "MULTICAST"), ("x", "dy", "relay"), _ARRIVED, "the token's row, into all rows of the op's members"),
        Function("relay", ("PUT", "MULTICAST"), ("x", "dy"), ("relay",), "the token's row"),
        Function("gemm1", ("COMPUTE",), ("expert.x",), ("expert.a",), "the tile of the op's key, activation included"),
        Function("gemm2", ("COMPUTE",), ("expert.a",), ("expert.y",), "the tile of the op's key, gate weight included", cut=True),
        Function("gemm2_dgrad", ("COMPUTE",), ("expert.dy",), ("expert.dh",), "gradients of gate weight and activation included"),
        Function("gemm1_dgrad", ("COMPUTE",), ("expert.dh",), ("expert.dx",), "the tile of the op's key", cut=True),
        Function("gemm2_wgrad", ("COMPUTE",), ("expert.dy",), ("w2.grad",), "with the stored a"),
        Function("gemm1_wgrad", ("COMPUTE",), ("expert.dh",), ("w1.grad",), "with the stored x"),
        Function(
            "sum",
            ("PUT", "GET", "PULL_REDUCE", "PUSH_REDUCE", "JOIN"),
            (*_RESULTS, *_ARRIVED, "relay.partial"),
            ("y", "dx", "partial", "relay.partial"),
            "the token's rows, unweighted",
        ),
        Function(
            "row",
            ("PUT", "GET", "PULL_REDUCE"),
            (*_RESULTS, *_ARRIVED),
            ("partial", "relay.row"),
            "one expert's row; y or dx is then the sum of the token's partial rows, by slot",
        ),
        Function("relay_row", ("PUT",), ("relay.row",), ("partial",), "the row of the op's key"),
        Function(
            "relay_sum", ("PUT", "PULL_REDUCE"), ("relay.partial",), ("partial", "relay.partial", "y", "dx"), "the token's rows of the op's GPU"
        ),
    ),
)
