"""Names of what takes the time of a layer: causes of `Row.attribution` and waits of `Row.stalls`, for all texts and pages."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.analysis import Row


@dataclass(frozen=True, slots=True)
class Cause:
    """Words for one cause. `short`: in lists and legends. `words`: in sentences; "" = as in lists."""

    short: str
    words: str = ""


CAUSES = {
    "link_up_us": Cause("up links"),
    "link_down_us": Cause("down links"),
    "sm_us": Cause("SMs", "expert GEMMs on the SMs"),
    "latency_us": Cause("latencies", "latencies of hops, memory and acknowledgements"),
    "window_us": Cause("windows", "round trips of full windows"),
    "host_us": Cause("software", "launches, barriers and other software"),
    "start_us": Cause("late start", "late start of a rank"),
    "surroundings_us": Cause("outside kernels", "permutation, activation, casts and gaps between kernels"),
    "nic_out_us": Cause("NICs out"),
    "nic_in_us": Cause("NICs in"),
    "nic_latency_us": Cause("latencies between domains"),
    "spine_out_us": Cause("uplinks of leaf switches"),
    "spine_in_us": Cause("downlinks of leaf switches"),
    "spine_latency_us": Cause("latencies through the spine"),
    "xgmi_out_us": Cause("links between GPUs out"),
    "xgmi_in_us": Cause("links between GPUs in"),
    "xgmi_latency_us": Cause("latencies of links between GPUs"),
}
"""Every cause of `Row.attribution`, in the order of bars."""
SHORT = {name: cause.short for name, cause in CAUSES.items()}
STALLS = {"window_us": SHORT["window_us"], "link_us": "links", "sm_us": SHORT["sm_us"]}
"""Every wait of `Row.stalls`."""
_SM_OF_REAL_FORM = "GEMMs and copies of communication kernels on the SMs"


def cause_names(row: Row) -> dict[str, str]:
    """Causes of `Row.attribution` as sentences name them."""
    words = {name: cause.words or cause.short for name, cause in CAUSES.items()}
    return words | ({"sm_us": _SM_OF_REAL_FORM} if row.form == "real" else {})
