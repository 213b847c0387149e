"""Names of what takes the time of a layer, in texts and pages, of resources, and what limits a layer, in sentences."""

import re
from pathlib import Path

from dysharp.analysis import Row
from dysharp.base import Cells, frozen, read_toml
from dysharp.program import NET_KINDS


@frozen
class Cause:
    """Words and colour of one cause. `short`: in lists and legends. `words`: in sentences; "" = as in lists."""

    short: str
    colour: str
    words: str = ""


OF_ALL_RUNS = {name: Cause(**one) for name, one in read_toml(Path(__file__).with_suffix(".toml")).items()}
"""Causes of `Row.attribution` besides those of networks."""
STALLS = {"window_us": OF_ALL_RUNS["window_us"].short, "link_us": "links", "sm_us": OF_ALL_RUNS["sm_us"].short}
"""Every wait of `Row.stalls`."""
_RESOURCES = {
    "up": "the up link of GPU {}",
    "down": "the down link of GPU {}",
    "memory": "the memory of GPU {}",
    "sm": "the SMs of GPU {}",
    "sms": "the SMs of GPU {}",
}
_SM_WITH_COPIES = "GEMMs and copies of communication kernels on the SMs"
_SATURATED = 0.8
"""Share of the time from which a resource or a cause limits alone, and of the SMs' from which it is that of GEMMs."""


def causes() -> dict[str, Cause]:
    """Every cause of `Row.attribution`, in the order of bars. Each kind of network brings its own causes."""
    of_nets = (zip(kind.cause_keys, kind.causes, kind.colours, strict=True) for kind in NET_KINDS.values())
    return OF_ALL_RUNS | {key: Cause(words, colour) for kind in of_nets for key, words, colour in kind}


def short_names() -> Cells:
    """Causes of `Row.attribution` as lists and legends name them."""
    return {name: cause.short for name, cause in causes().items()}


def cause_names(row: Row) -> Cells:
    """Causes of `Row.attribution` as sentences name them."""
    words = {name: cause.words or cause.short for name, cause in causes().items()}
    gemms = sum(us for name, us in row.path_us.items() if name.startswith("gemm"))
    copies = row.form == "real" or gemms < _SATURATED * row.attribution.get("sm_us", 0.0)
    return words | ({"sm_us": _SM_WITH_COPIES} if copies else {"sm_us": "GEMMs on the SMs"} if row.workload else {})  # a sub-layer has no experts


def answer_of(row: Row) -> str:
    """The layer time of one system, what limits it, and the lower bound of its workload."""
    return f"{row.system} ({row.form} form) takes {row.layer_us:.1f} us, {limits_of(row)}"


def limits_of(row: Row) -> str:
    """The busiest resource and the critical path of one Row, and the time that no system can beat."""
    names = {name: name for name in row.attribution} | cause_names(row)  # a stored Row may have a cause of a network that is not installed
    causes = sorted(row.attribution, key=lambda cause: -row.attribution[cause])
    shares = [f"{names[c]} ({row.attribution[c] / row.time_us:.0%})" for c in causes[:2] if row.attribution[c] >= 0.1 * row.time_us]
    share = row.bound_us / row.time_us
    leading = f" for the first {row.window['tokens']} tokens" if row.window else ""
    limit, even, least = "limited by", " where all GPUs keep step" if row.skew else "", row.workload_bound_us
    if share < _SATURATED:
        most = row.attribution[causes[0]] / row.time_us
        limit = f"limited by {names[causes[0]] if most >= _SATURATED else 'no single resource'}; the busiest resource is"
    return (
        f"{limit} {resource_words(row.bound_resource)}, which alone needs {row.bound_us:.1f} us{leading} "
        f"({share:.0%} of {'their' if leading else 'the'} time). Its critical path is {' and '.join(shares)}. "
        f"No system that moves rows can take less than {least:{'.1f' if least >= 0.05 else '.1g'}} us{leading or ' on this workload'}{even}."
    )


def resource_words(resource: str) -> str:
    """ "gpu[3].memory" as "the memory of GPU 3", also inside of a text; other names are quoted."""
    links = re.sub(r"gpu\[(\d+)\]\.\w+ to gpu\[(\d+)\]", r"the link from GPU \1 to GPU \2", resource)
    words = _RESOURCES | {side: text for kind in NET_KINDS.values() for side, text in zip(kind.sides, kind.links, strict=True)}
    known = re.sub(rf"gpu\[(\d+)\]\.({'|'.join(words)})\b(?!\.)", lambda found: words[found[2]].format(found[1]), links)
    return re.sub(r"gpu\[(\d+)\]\.([\w.]+( and (?!the |gpu)\w+)?)", r'"\2" of GPU \1', known)
