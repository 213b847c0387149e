"""One Row as text: name, value, unit."""

from collections.abc import Mapping, Sequence

from dysharp.analysis import Row
from dysharp.base import AnyMapping, Texts
from dysharp.measured.trust import eager_is_known
from dysharp.program.nets import INSIDE, NET_KINDS
from dysharp.runs import STALLS, answer_of, resource_words, short_names
from dysharp.show.output import print_facts, print_lines


def print_row(row: Row) -> None:
    """The answer, then all fields of a Row that people read. Parts that round to zero are left out."""
    print_lines([answer_of(row), ""])
    print_facts(_facts(row))


def bytes_unit(rows: Sequence[Row]) -> tuple[float, str]:
    """One unit for all payload sizes of Rows: GB from one GB on, else MB (decimal)."""
    largest = max((sum(row.traffic_bytes[side].values()) for row in rows for side in near_sides(row)), default=0)
    return (1e9, "GB") if largest >= 1e9 else (1e6, "MB")


def percent(row: Row, side: str, *, narrow: bool = False) -> str:
    """Utilization in percent: "mean / max" over GPUs, or the mean alone."""
    mean = f"{100 * row.utilization[side]:.0f}"
    return mean if narrow else f"{mean} / {100 * row.utilization[f'{side}_max']:.0f}"


def _times(parts: Mapping[str, float], names: Mapping[str, str] | None = None) -> str:
    """Parts of a time in us. A part that prints as 0.0 is left out."""
    names = names or {}
    seen = {name: f"{us:.1f}" for name, us in parts.items()}
    return ", ".join(f"{names.get(name, name.removesuffix('_us').replace('_', ' '))} {us} us" for name, us in seen.items() if us != "0.0") or "none"


def _facts(row: Row) -> list[tuple[str, str]]:
    divisor, unit = bytes_unit([row])
    gain = max(0.0, min(row.exposed_comm_us, row.time_us - row.workload_bound_us))  # the GPU that ends last may wait for GEMMs of others

    def sizes(side: str) -> str:
        return ", ".join(f"{name} {value / divisor:.3f} {unit}" for name, value in row.traffic_bytes[side].items() if value) or "none"

    phases = [(f"  {name}", f"{p['start']:.1f} to {p['end']:.1f} us, busy {p['busy']:.1f} us") for name, p in row.phases_us.items() if p["end"] > 0]
    return [
        ("system", f"{row.system} ({row.form} form)"), *_window_facts(row),
        ("time" if row.workload else "layer time", f"{row.time_us:.2f} us"), *_surroundings_facts(row),
        ("exposed communication", f"{row.exposed_comm_us:.2f} us, of which at most {gain:.2f} us can be saved: lower bound, any system"),
        ("lower bound, this system", f"{row.bound_us:.2f} us by {resource_words(row.bound_resource)}: {_times(row.bound_terms)}"),
        ("lower bound, any system", f"{row.workload_bound_us:.2f} us"), ("critical path", _times(row.attribution, short_names())),
        ("phases, GPU that ends last", ""), *phases, *_waiting_facts(row), ("waits, GPU that ends last", _times(row.stalls, STALLS)),
        *((f"payload {side}", sizes(side)) for side in (*_nvlink_sides(row), *_other_sides(row))),
        *([("on the wire", f"{row.wire_flits['up']} flits up, {row.wire_flits['down']} flits down")] if _nvlink_sides(row) else []),
        *((f"{side} links, mean / max", f"{percent(row, side)} % busy") for side in _nvlink_sides(row)),
        *((f"{side} links, mean / max", f"{percent(row, side)} % busy") for side in _other_sides(row)),
        ("SMs, mean / max", f"{percent(row, 'sm')} % busy"), *_block_facts(row.blocks),
        ("simulation", f"{row.n_ops} ops, {row.n_events} events in {row.wall_s['total']:.2f} s, digest {row.digest}"),
    ]  # fmt: skip


def _nvlink_sides(row: Row) -> Texts:
    """Link directions of NVLink; () in a fabric without a switch."""
    return tuple(side for side in near_sides(row) if side in ("up", "down"))


def near_sides(row: Row) -> tuple[str, str]:
    """The link directions between GPUs of one domain: of NVLink, or of the links of pairs in a fabric without a switch."""
    inside = [kind.sides for kind in NET_KINDS.values() if kind.place == INSIDE]
    return next((sides for sides in inside if sides[0] in row.traffic_bytes), ("up", "down"))


def _other_sides(row: Row) -> list[str]:
    """Link directions of other networks than NVLink: "nic out", "nic in" over several domains."""
    return [side for side in row.traffic_bytes if side not in ("up", "down")]


_WAITS = {"moving": "moving", "resource": "resource", "own": "hidden wait", "peers": "peers"}
"""{part of a span in `Row.waiting_us`: its words}."""


def _waiting_facts(row: Row) -> list[tuple[str, str]]:
    """Per operator: the mean over ranks of its span and parts, and the rank that waits longest for peers."""
    facts = [("span, mean over ranks", "moving, and what it waits for")]
    for name, parts in row.waiting_us.items():
        mean = {words: sum(parts[part]) / len(parts[part]) for part, words in _WAITS.items()}
        text = f"{sum(parts['span']) / len(parts['span']):.1f} us: {_times(mean)}"
        longest = max(parts["peers"])
        if longest >= 0.05:
            text += f"; peers up to {longest:.1f} us (rank {parts['peers'].index(longest)})"
        facts.append((f"  {name}", text))
    return facts if len(facts) > 1 else []


def _surroundings_facts(row: Row) -> list[tuple[str, str]]:
    """Parts of the layer time that are not in the Program; the facts below them describe the Program alone."""
    if not row.surroundings_us:
        return []
    return [
        ("  in kernels", f"{row.simulated_us:.2f} us" + ("" if row.program_us == row.time_us else "; all facts below describe this part")),
        ("  outside kernels", f"{row.time_us - row.simulated_us:.2f} us of {_times(row.surroundings_us | {'host_us': 0.0})}; the rest is hidden"),
        *([("eager layer time", f"{row.eager_us:.2f} us, with the launches of the host")] if eager_is_known(row) else []),
    ]


def _window_facts(row: Row) -> list[tuple[str, str]]:
    """The estimate for the whole layer; the facts below it describe the leading tokens alone."""
    if not row.window:
        return []
    w = row.window
    return [
        (
            "whole layer, estimated",
            f"{w['time_us']:.2f} us for {w['of_tokens']} tokens per GPU, {w['us_per_token']:.4f} us per token; "
            f"nine of ten layers are within {w['apart']:.1%}".replace("%", " %"),
        ),
        ("leading tokens", f"the first {w['tokens']} tokens of each GPU; all facts below describe them"),
    ]


def _block_facts(blocks: AnyMapping) -> list[tuple[str, str]]:
    """Counts of the fabric's blocks at packet level; idle blocks are left out."""
    if "al_tlb" not in blocks:
        return []
    al, reduction, queue = blocks["al_tlb"], blocks["reduction"], blocks["multimemq"]
    packets, buffered = blocks["packets"]["cut"], blocks["input_buffer"]["max_flits"]
    facts = [("blocks of the fabric", f"{packets} packets, input buffers hold up to {buffered} flits per port")]
    if al["lookups"]:
        name = al["table"].replace("_", " ").upper()
        flying, retries = al["misses_under_way"], f"{al['full_retries']} retries without a free register"
        facts += [
            (
                f"  {name}",
                f"{al['lookups']} lookups, {al['hit_rate']:.1%} hits, {al['misses']} reads of memory, {al['merged']} joined a miss, "
                f"{al['evictions']} evictions",
            ),
            ("    misses in flight", f"mean {flying['mean']:.0f}, maximum {flying['max']}, over all hubs; {retries}"),
            ("    banks", f"{al['bank_waits']} lookups at a busy bank, {al['bank_wait_ns_mean']:.1f} ns per lookup (not charged)"),
        ]
    if reduction["sessions"]:
        live = reduction["occupancy"]
        ends = f"{reduction['evictions']} evictions, {reduction['timeouts']} timeouts, {reduction['bypasses']} bypasses"
        facts += [
            ("  reduction tables", f"{reduction['sessions']} sessions, {ends}"),
            ("    live sessions", f"mean {live['mean']:.0f}, maximum {live['max']}, over all ports"),
        ]
    if queue["fetches"]:
        facts += [("  MultimemQ", f"{queue['fetches']} target lists, {queue['lists_under_way_mean']:.1f} in flight per GPU")]
    stalls = ", ".join(
        f"{cause.replace('_', ' ')} {n}" + (f" ({blocks['stalls_us'][cause]:.0f} us)" if cause in blocks["stalls_us"] else "")
        for cause, n in blocks["stalls"].items()
        if n
    )
    return [*facts, ("  stalls by cause", stalls or "none")]
