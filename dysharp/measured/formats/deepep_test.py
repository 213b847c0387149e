"""Output of DeepEP's tests: the best of `test_intranode` and `test_internode`, and kernels of `test_low_latency`.

"553 + 1400 us" is notify + kernel; the row is the kernel. GB/s over NICs count the own node. The tests do not print experts, nor GPUs.
"""

import re
from collections.abc import Mapping
from statistics import median

from dysharp.base import ByName, Cells
from dysharp.measured.formats.log import Log, lacking, measurement, number

NAME = "output of DeepEP's tests"
CONFIG = re.compile(r"\[config\] num_tokens=(\d+), hidden=(\d+)(?:, num_topk_groups=(\d+))?, num_topk=(\d+)")
BEST = re.compile(
    r"\[tuning\] Best (dispatch|combine)(?: \((FP8|BF16)\))?: SMs (\d+), NVL chunk \d+(?:, RDMA chunk \d+)?[,:] "
    r"(?:[\d.]+ \+ ([\d.]+) us, )?(?:([\d.]+) GB/s \(RDMA\), )?([\d.]+) GB/s \(NVL\)(?:, (?:avg_)?t[:=] ?([\d.]+) us)?"
)
RANK = re.compile(r"\[rank (\d+)\] Dispatch bandwidth: [\d.]+ GB/s, avg_t=([\d.]+) us \| Combine bandwidth: [\d.]+ GB/s, avg_t=([\d.]+) us")
RANKS = re.compile(r"\bnranks (\d+)")
NODE, MOST_GROUPS = 8, 4
"""GPUs of a node, and nodes that a token may need, in `test_internode`."""
NEEDED = ("hardware", "ep", "experts", "tokens_per_rank", "hidden", "topk")


def fits(text: str) -> bool:
    """Whether a text has a line of DeepEP's tests."""
    return "[tuning] SMs" in text or "[tuning] Best" in text or RANK.search(text) is not None


def read(text: str, given: Mapping[str, str]) -> Log:
    """Rows of all best settings, or of the low-latency kernels as the median of their ranks."""
    config: ByName = {}
    if stated := CONFIG.search(text):
        config = {"tokens_per_rank": stated[1], "hidden": stated[2], "topk_groups": stated[3], "topk": stated[4]}
    by_rank = {found[1]: (found[2], found[3]) for found in RANK.finditer(text)}
    ranks = RANKS.search(text)
    config |= {"ep": str(len(by_rank)) if by_rank else ranks[1] if ranks else ""}
    config |= {key: value for key, value in given.items() if key not in ("hardware", "system")}
    rows: list[Cells] = []
    for verb, dtype, sms, kernel, rdma, nvl, us in BEST.findall(text):
        _add(rows, given, verb, _internode(config, bool(rdma)) | {"dtype": dtype.lower() or "bf16", "sms": sms}, kernel or us, rdma or nvl)
    for place, (verb, dtype) in enumerate((("dispatch", "fp8"), ("combine", "bf16"))) if by_rank else ():
        times = [us for pair in by_rank.values() if (us := number(pair[place]))]
        if times:
            _add(rows, {"system": "DeepEP-LL", **given}, verb, config | {"dtype": dtype}, repr(median(times)), "")
    return Log(NAME, rows, lacking(NEEDED, {**config, **given}), (*NEEDED, "system", "nodes"))


def _internode(config: ByName, rdma: bool) -> ByName:
    ep = int(config["ep"] or 0) if config["ep"].isdigit() else 0
    nodes = -(-ep // NODE) if rdma else 1
    groups = config.get("topk_groups")
    odd = rdma and groups and int(groups) != min(nodes, MOST_GROUPS)
    return config | {"nodes": nodes, "refused": f"tokens limited to {groups} of {nodes} nodes" if odd else ""}


def _add(rows: list[Cells], given: Mapping[str, str], verb: str, config: ByName, us: str, rate: str) -> None:
    """A time where the test prints one, else a rate."""
    value = number(us or rate)
    if not value:
        return
    cells = {"kind": f"ep_{verb}", "system": given.get("system", "DeepEP-normal"), "hardware": given.get("hardware", "")}
    cells |= {"metric": "latency", "unit": "us"} if us else {"metric": "bandwidth", "unit": "GB/s"}
    regime = {"measure": "kernel"} if us else {"regime": "chained"}
    rows.append(measurement(len(rows) + 1, "deepep-test", cells, config | regime, value))
