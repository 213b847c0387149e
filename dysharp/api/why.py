"""Where the gain of a system comes from: from a baseline part by part, each part a difference of two runs (docs/design/0038)."""

from collections.abc import Mapping
from pathlib import Path

from dysharp.base import AnyMapping, ByName, ConfigError, frozen, named, read_toml
from dysharp.systems import find_system

Order = tuple[tuple[str, str], ...]
"""(part, the system that has this part and all before it)."""
_TABLE = read_toml(Path(__file__).with_suffix(".toml"))
LADDERS: Mapping[str, tuple[str, tuple[Order, ...]]] = {
    name: (one["baseline"], tuple(tuple((part, system) for part, system in order) for order in one["orders"])) for name, one in _TABLE.items()
}
"""System -> (baseline, orders of its parts). A part stands behind the parts that it needs, in every order."""


@frozen
class Part:
    """What one part saves: the time of the system `before` less that of `system`. `busiest`: the resource that binds with the part, and `share` of
    the time that it needs."""

    part: str
    before: str
    system: str
    us: float
    saved_us: float
    busiest: str
    share: float


@frozen
class Why:
    """The gain of `target` over `baseline` by parts, in each of its orders. `Comparison.why`."""

    target: str
    baseline: str
    baseline_us: float
    orders: tuple[tuple[Part, ...], ...]

    @property
    def saved(self) -> dict[str, list[float]]:
        """{part: us that it saves in each order}."""
        by_name = [{one.part: one.saved_us for one in order} for order in self.orders]
        return {one.part: [saved[one.part] for saved in by_name] for one in self.orders[0]}

    def runs(self, *, paper: bool) -> list[tuple[str, str]]:
        """The systems whose runs the parts are differences of, each with the words of its command. `paper`: the cluster has real forms, too."""
        real = {name for name in systems_of(self.target) if paper and (one := find_system(name)) and one.has_real_form}
        return [(name, f"run {name}" + f" --set {name}.form=paper" * (name in real)) for name in systems_of(self.target)]

    @property
    def mixed(self) -> list[str]:
        """Parts that save time in one order and cost time in another, by 0.1 us at least, as all is printed."""
        return [part for part, saved in self.saved.items() if round(min(saved), 1) < 0 < round(max(saved), 1)]

    @property
    def sentence(self) -> str:
        """The parts of the first order, those whose sign depends on the order, and a system on the way that is faster."""
        parts = ", ".join(f"{one.part} {one.saved_us:+z.1f}" for one in self.orders[0])
        ranges = ", ".join(f"{part} ({min(self.saved[part]):+.1f} to {max(self.saved[part]):+.1f})" for part in self.mixed)
        end = f" Whether a part saves depends on the order: {ranges}." if ranges else ""
        best = min((one for order in self.orders for one in order), key=lambda one: one.us)
        end += f" On the way, {best.system} is faster than {self.target} ({best.us:.1f} us)." * (round(best.us, 1) < round(self.orders[0][-1].us, 1))
        saved = self.baseline_us - self.orders[0][-1].us
        verb, of = ("saves", "of the") if saved >= 0 else ("adds", "to the")
        return f"{self.target} {verb} {abs(saved):.1f} us {of} {self.baseline_us:.1f} us of {self.baseline}: {parts} us.{end}"

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        return named(self, "target", "baseline", "baseline_us", "orders", "saved", "mixed", "sentence")


def target_of(systems: Mapping[str, float]) -> str:
    """The fastest of {system: us} whose gain has parts. Raises ConfigError where none has."""
    known = {us: name for name, us in systems.items() if name in LADDERS}
    if not known:
        raise ConfigError(f"why: found {', '.join(systems)}, expected one whose gain has parts ({', '.join(LADDERS)}; forms paper or all)")
    return known[min(known)]


def systems_of(target: str) -> list[str]:
    """The systems whose runs `why_of` takes."""
    baseline, orders = LADDERS[target]
    return list(dict.fromkeys([baseline, *(name for order in orders for _, name in order)]))


def why_of(target: str, rows: AnyMapping) -> Why:
    """`rows`: {system: Row} of `systems_of(target)` on one workload."""
    baseline, orders = LADDERS[target]
    parts = []
    for order in orders:
        names = [baseline, *(name for _, name in order)]
        parts.append(tuple(
            Part(part, before, name, rows[name].layer_us, rows[before].layer_us - rows[name].layer_us,
                 rows[name].bound_resource, rows[name].bound_us / rows[name].time_us)
            for (part, name), before in zip(order, names, strict=False)
        ))  # fmt: skip
    return Why(target, baseline, rows[baseline].layer_us, tuple(parts))
