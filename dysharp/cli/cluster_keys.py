"""The keys of a cluster file, for `dysharp list cluster-keys` and the reference page."""

from __future__ import annotations

from typing import Any

KEYS = {
    "name": "name of the cluster",
    "family": "paper: the assumptions of a paper; hw: a machine that one can buy, with fitted constants",
    "n_gpus": "GPUs in use when --gpus is not given",
    "n_switches": "switch chips; every GPU has links to every chip; 0: every pair of GPUs has a link",
    "links_per_gpu": "links of a GPU; each ends at one switch port, or at another GPU",
    "link_GBps": "rate of all links of a GPU together, one direction, GB/s",
    "link_latency_ns": "latency of one hop, GPU to switch or switch to GPU, ns",
    "flit_bytes": "bytes of a flit; a power of two",
    "n_vcs": "virtual channels per group of a port: requests, and responses",
    "vc_flits": "flits of one virtual channel; 0: no limit",
    "internal_speedup": "rate of the switch crossbar over the link rate",
    "n_sms": "SMs of a GPU",
    "fp8_TFLOPS": "dense FP8 peak of a GPU, TFLOP/s",
    "bf16_TFLOPS": "dense BF16 peak of a GPU, TFLOP/s",
    "hbm_GBps": "memory rate of a GPU, GB/s",
    "hbm_GB": "memory of a GPU, GB",
    "reduction_buffer_KiB": "reduction table of one switch port, KiB",
    "multimemq_entries": "MultimemQ entries of one load/store unit",
    "al_tlb_entries": "AL TLB entries of a GPU; the packet level models its misses",
    "ts_entries": "tiles in the tracker of a GPU",
    "or_entries": "tokens in the readiness table of a GPU",
    "tile_rows": "rows of a tracked tile",
    "source": "where the numbers are from",
    "gpu": "packaged GPU with datasheet and constants; needed for family hw",
    "max_gpus": "most GPUs that can be used; 0: n_gpus",
    "constants": "table of fitted constants that replace the packaged ones; `dysharp calibrate` writes it",
    "scale_out": "table [scale_out]: the network between NVLink domains; without it the cluster is one domain",
    "scale_out.domain_gpus": "GPUs of one NVLink domain",
    "scale_out.nic_GBps": "payload that one NIC moves in one direction, GB/s",
    "scale_out.latency_us": "one way of a small put between GPUs of two domains, us",
    "scale_out.nics_per_gpu": "NICs of one GPU",
    "scale_out.message_us": "time that a NIC needs for a message besides its bytes, us; 0: GPUs post messages themselves",
    "scale_out.oversubscription": "rate of a leaf switch to its NICs over its rate to the spine, which rows between rails pass; 1: none",
    "scale_out.lost_nics": "GPUs that have lost one of their NICs; a GPU must keep one",
    "scale_out.slow_nics": "[GPU, part] pairs: the NICs of this GPU reach this part of their rate",
}
"""Key -> meaning."""
UNBOUNDED = 1e9  # a limit that only keeps nonsense out


def cluster_keys() -> list[dict[str, Any]]:
    """One entry per key: `name`, `type`, `range`, `default` (None: required), `meaning`."""
    from pydantic import TypeAdapter

    from dysharp.specs.clusterfile import ClusterFile

    schema = TypeAdapter(ClusterFile).json_schema()
    gives = "cluster that gives all keys that the file leaves out"
    base = {"name": "base", "type": "text", "range": "a packaged cluster", "default": "", "meaning": gives}
    nested = schema["$defs"]["ScaleOut"]
    inside = [_entry(f"scale_out.{name}", key, name in nested["required"]) for name, key in nested["properties"].items()]
    return [base, *(_entry(name, key, name in schema["required"]) for name, key in schema["properties"].items()), *inside]


def _entry(name: str, key: dict[str, Any], required: bool) -> dict[str, Any]:
    types = {"string": "text", "integer": "whole number", "number": "number", "array": "table", "object": "table"}
    key = {"type": "object"} if "type" not in key else key  # a table that may be left out
    kind = types[key["type"]]
    low, above, high = key.get("minimum"), key.get("exclusiveMinimum"), key.get("maximum")
    span = "paper, hw" if name == "family" else ""
    if high is not None:
        span = f"above {above:g}" if above is not None else f"{low:g} or more" if high >= UNBOUNDED else f"{low:g} to {high}"
    default = None if required else {"array": "", "string": "", "object": ""}.get(key["type"], key.get("default"))
    return {"name": name, "type": kind, "range": span, "default": default, "meaning": KEYS[name]}
