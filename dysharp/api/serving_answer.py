"""`Serving`: the answer of `serve` as sentences, numbers and plain values."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, field, replace

from dysharp.api.arguments import Slo
from dysharp.api.serving_program import MergedLayer
from dysharp.api.serving_replay import Replayed
from dysharp.api.serving_systems import SystemPoint
from dysharp.base import ByName, Column, Columns, Rows, Texts, frozen, named, older_name
from dysharp.measured.intervals import Interval
from dysharp.measured.serving.predictions import group_of, outside_of, served_interval
from dysharp.model import Formats, formats_of, published
from dysharp.serving.answers import LIMITS, Overlap, Slots, limit_of, point_dict, words_of
from dysharp.serving.balance import stalled
from dysharp.serving.disaggregated import Disaggregated
from dysharp.serving.engine import Engine, engine_of
from dysharp.serving.launch import Start, Task, start_of
from dysharp.serving.layout import ServeLayout
from dysharp.serving.search import EQUAL, Rejected, ServePoint
from dysharp.serving.whatif import ServeWhatIf
from dysharp.specs import choice_int

BETTER = 1.05
"""Times the throughput from which the first sentence names disaggregation."""
TIE = f"within {100 * EQUAL:g} % smaller replicas go first, as one dead GPU stops one"


@frozen
class Serving:
    """The answer of `serve`.

    | field | holds |
    |---|---|
    | `best` | the best points within the limits, one per layout; empty where none keeps them, as `sentences()` says |
    | `front`, `points` | points that no other beats; all points |
    | `rejected` | layouts that do not fit, with the reason |
    | `disaggregated` | the best pools of prefill and decode workers (disaggregated serving) within the limits |
    | `what_ifs` | the best point on other machines; empty unless asked for |
    | `systems` | the best point with dispatch under EP systems that were asked for |
    | `layers` | merged layers of the best point, if asked for |
    | `replays` | what came of `requests` on the best layout, or on each of `layouts` |
    | `overlap`, `slots`, `break_even` | at the best point: two-batch overlap, EPLB with recorded loads, acceptance above which draft tokens pay |
    """

    model: str
    cluster: str
    gpus: int
    engine: Engine
    slo: Slo
    users: int | None
    best: tuple[ServePoint, ...]
    front: tuple[ServePoint, ...]
    points: tuple[ServePoint, ...]
    rejected: tuple[Rejected, ...]
    header: Texts
    disaggregated: Disaggregated | None = None
    what_ifs: tuple[ServeWhatIf, ...] = ()
    overlap: Overlap | None = None
    slots: tuple[Slots, ...] = ()
    break_even: float | None = None
    systems: tuple[SystemPoint, ...] = ()
    layers: dict[str, MergedLayer] | None = None
    formats: ByName = field(default_factory=dict)
    """Of weights, products, KV, state and rows (`Formats.to_dict`)."""
    learned: Interval | None = None
    """Of the TPOT of the best point, where rows of this very machine taught its costs; all points take it."""
    replays: tuple[Replayed, ...] = ()

    apart = older_name("disaggregated")

    @property
    def gpus_for_users(self) -> int | None:
        """The fewest GPUs on which a layout within the limits serves `users` users."""
        point = self._for_users
        return None if point is None else self._replicas(point) * point.replica.layout.gpus

    @property
    def gpus_for_users_and_a_loss(self) -> int | None:
        """The same with one replica more, which may be lost."""
        point = self._for_users
        return None if point is None else (self._replicas(point) + 1) * point.replica.layout.gpus

    @property
    def _for_users(self) -> ServePoint | None:
        if self.users is None or not self.best:
            return None
        return min(self.best, key=lambda point: self._replicas(point) * point.replica.layout.gpus)

    def _replicas(self, point: ServePoint) -> int:
        """Replicas that `users` users need."""
        return math.ceil((self.users or 0) / point.scenario.concurrency)

    def sentences(self) -> Texts:
        """What came of requests that were replayed, the answer, what limits it, and why the next layout loses."""
        return (*(line for one in self.replays[:1] for line in one.sentences()), *self._sentences())

    def _sentences(self) -> Texts:
        limits = f"TPOT of {self.slo.tpot:g} ms and TTFT of {self.slo.ttft:g} ms"
        if not self.best:
            if not self.points:
                return (f"{self.model} does not fit on {self.gpus} GPUs of {self.cluster}: {self.rejected[-1].reason}.",)
            fast = min(self.points, key=lambda p: p.served.tpot)
            return (f"No layout keeps a {limits}: the fastest is {_named(fast)} at {_times(fast)}.", *self._disaggregated_line(None))
        first = self.best[0]
        copies, users = f"{first.replicas} x " if first.replicas > 1 else "", f"a concurrency of {first.scenario.concurrency:g} per replica"
        lines = [
            f"{copies}{_named(first)}: {first.tokens_per_gpu:,.0f} tokens/s per GPU at {users}, {_times(first)}.",
            f"Limit: {self._limit(first)}.",
        ]
        if len(self.best) > 1:
            second = max(self.best[1:], key=lambda point: point.tokens_per_gpu)
            gpus, behind = second.replica.layout.gpus, 100 * (1 - second.tokens_per_gpu / first.tokens_per_gpu)
            by = f"{behind:.0f} % behind" if behind >= 0 else f"{-behind:.1f} % ahead with replicas of {gpus} GPUs: {TIE}"
            lines.append(f"Next: {_named(second)}, {by}; limit: {words_of(second)}.")
        if (point := self._for_users) is not None:
            replicas = self._replicas(point)
            layout = "" if point is first else f" of {_named(point)}"
            room = f"the cache of a replica has room for {point.memory.requests * point.replica.layout.dp:,}"
            gpus = replicas * point.replica.layout.gpus
            who, one = ("1 user", "s") if self.users == 1 else (f"{self.users:,} users", "")
            need = f"{who} need{one} {gpus} GPU{'s' * (gpus > 1)}: {replicas} replica{'s' * (replicas > 1)}{layout}"
            lines.append(f"{need} with {point.scenario.concurrency:g} users each within the limits; {room}.")
            kept, spare = min(self.users or 0, (replicas - 1) * int(point.scenario.concurrency)), (replicas + 1) * point.replica.layout.gpus
            lines.append(f"With one replica lost {kept:,} of {who} stay{one} within the limits; {spare} GPUs lose none.")
        if self.disaggregated is not None and self.disaggregated.tokens_per_gpu > BETTER * first.tokens_per_gpu:
            lines[0] = f"{lines[0][:-1]}; disaggregated prefill and decode give {self.disaggregated.tokens_per_gpu:,.0f}."
        return (*lines, *self._disaggregated_line(first))

    def _limit(self, point: ServePoint) -> str:
        """What limits the point, and what helps: the limit of time that one more user would break, if any, before its largest cause."""
        users, most = point.scenario.concurrency, self.engine.most_requests
        if users >= most * point.replica.layout.dp and most < engine_of(self.engine.name).most_requests:
            return f"the {most:,} requests of an attention group that the launch line allows; more would help while memory and times do"
        limit, more = limit_of(point), point.at(users + 1).served
        formats, part = point.replica.formats, LIMITS[limit].get("narrows")
        refused = start_of(self.engine, replace(point.replica, formats=replace(formats, kv="fp8")), point.scenario).refuses
        least = part and (formats.kv == "fp8" or refused if part == "kv" else formats.of(part).weight_bytes < 1)  # no narrower format starts
        cause = f"{words_of(point)}; {LIMITS[limit]['narrow' if least else 'helps']}"
        if limit != "memory" and more.tpot / 1e3 > self.slo.tpot:
            return f"TPOT of {self.slo.tpot:g} ms, above all {cause}"
        if limit != "memory" and more.ttft / 1e3 > self.slo.ttft:
            return f"TTFT of {self.slo.ttft:g} ms; {LIMITS['prompts']['helps']}"
        return cause

    def _disaggregated_line(self, first: ServePoint | None) -> Texts:
        """Whether disaggregation pays."""
        a = self.disaggregated
        if a is None:
            return ("Disaggregated prefill and decode: no pools keep the limits on so many GPUs.",)
        gain = f" ({100 * (a.tokens_per_gpu / first.tokens_per_gpu - 1):+.0f} %)" if first is not None else ""
        idle = f", {a.idle} GPUs idle" if a.idle else ""
        return (
            f"Disaggregated prefill and decode: {a.prefill_workers} x {a.prefill.name} for prefill, {a.decode_workers} x {a.decode.name} for decode: "
            f"{a.tokens_per_gpu:,.0f} tokens/s per GPU{gain}, concurrency {a.users:,.0f}, TPOT {a.served.tpot / 1e3:.1f} ms, "
            f"TTFT {a.served.ttft / 1e3:,.0f} ms; the KV cache of a prompt is sent in {a.transfer / 1e3:.1f} ms{idle}.",
        )

    def advice(self) -> Texts:
        """What one can change at the best point: draft tokens, two batches that overlap, spare slots."""
        lines = []
        if self.break_even is not None and self.best:
            drafts = self.best[0].scenario.draft_tokens
            pays = f"above an acceptance of {self.break_even:.2f}" if self.break_even < 1 else "at no acceptance"
            lines.append(f"Speculative decoding ({drafts} draft token{'s' * (drafts != 1)} a step) pays {pays} at this batch.")
        if self.overlap is not None:
            start = self.overlap.pays_from
            words = f"it pays from {start} requests of a group" if start else "it pays at no batch that fits"
            lines.append(f"Two-batch overlap: {100 * self.overlap.gain:+.0f} % at this batch; {words}.")
        for name, layer in (self.layers or {}).items():
            differ = 100 * (layer.merged / layer.closed - 1)
            lines.append(f"A layer of {name} takes {layer.merged:,.0f} us as a Program, {layer.closed:,.0f} us by closed forms ({differ:+.0f} %).")
        if self.layers == {}:
            lines.append("No merged layer: the best layout is one GPU, or its groups cut experts.")
        for slot in self.slots if self.best else ():
            e, base, at = slot.eplb, self.slots[0].tokens_per_gpu, sharing(self.best)
            name, after = f"Without EPLB {at.replica.layout.name} at a concurrency of {at.scenario.concurrency:g} per replica", ""
            if e.slots:
                name = f"EPLB with {e.slots} spare slot{'s' * (e.slots > 1)} a GPU"
                after = f" ({100 * (slot.tokens_per_gpu / base - 1):+.0f} %); {e.held / 1e9:.1f} GB of copies, all slots anew in {e.seconds:.2f} s"
            lines.append(f"{name}: busiest GPU {e.busiest:.2f} times the mean, {slot.tokens_per_gpu:,.0f} tokens/s per GPU{after}.")
        if self.best and len(self.slots) > 1:
            every = f"{choice_int('eplb.stall_ms') / 1e3:.2f} s in {choice_int('eplb.interval_steps'):,} steps"
            part = stalled(sharing(self.best).served.tpot)
            lines.append(f"EPLB's stalls, measured elsewhere ({every}), take {100 * part:.1f} % of the time at this TPOT; these gains lack them.")
        return tuple(lines)

    def trust(self) -> Texts:
        """The error bar, and what lies outside the measured range."""
        if not self.best:
            return ()
        first = self.best[0]
        tpot = first.served.tpot / 1e3
        interval, group = self._interval(first), group_of(first.replica)
        shown = ["{:.1f} to {:.1f} ms".format(*interval.around(tpot, level)) for level in (0.9, 0.8)]
        of = f"runs like the best ({group}) that no fit saw" if self.learned is None else f"the best, by the {interval.n} rows of this machine,"
        missed = f"missed by {100 * interval.typical:.0f} % (median)"
        lines = [f"Error bar: measured TPOT of {of} is {missed}; nine of ten are {shown[0]}, eight of ten {shown[1]}."]
        if self.disaggregated is not None and group_of(first.replica, disaggregated=True) != group:
            own = served_interval(first.replica, self.disaggregated.served.tpot / 1e3, disaggregated=True)
            lines[0] += f" Disaggregated: {100 * own.typical:.0f} %, {own.low90:.2f} to {own.high90:.2f} times the prediction."
        outside = outside_of(first.replica, first.scenario)
        if outside:
            lines.append(f"Outside the measured range: {'; '.join(outside)}. The error bar is no promise there.")
        return tuple(lines)

    def launch(self) -> str:
        """The command that starts the best layout that the engine does not refuse; "" without one."""
        return next((start.command for _, start in self._starts() if not start.refuses), "")

    def _starts(self) -> Iterator[tuple[ServePoint, Start]]:
        return ((point, start_of(self.engine, point.replica, point.scenario)) for point in self.best)

    def starting(self) -> Texts:
        """How to start the best layout, and why the engine refuses better ones; both pools where the first sentence names them."""
        lines = list[str]()
        for point, start in self._starts():
            if start.refuses:
                lines.append(f"{point.replica.layout.name} does not start with {start.released}: {start.refuses}.")
                continue
            what = "it" if point is self.best[0] else point.replica.layout.name
            each = f", on each of {start.hosts} hosts (RANK from 0 on, HEAD: address of host 0)" if "$RANK" in start.command else ""
            lines += [f"Start {what} with {start.released}{each}: {start.command}", *([f"{start.notes}."] if start.notes else [])]
            model, own = point.replica.model, _weights(point.replica.formats)
            if model.repository and own.removesuffix("-fp8") != (kept := _weights(formats_of(published(model), model=model))):
                lines.append(f"{model.repository} holds {kept} weights: name a checkpoint in {own}.")
            if self.disaggregated is not None and self.disaggregated.tokens_per_gpu > BETTER * self.best[0].tokens_per_gpu:
                lines += self._starting_disaggregated(self.disaggregated, point)
            break
        return tuple(lines)

    def _starting_disaggregated(self, disaggregated: Disaggregated, like: ServePoint) -> Iterator[str]:
        """The servers of both pools, and what sends requests to them."""
        scenario = replace(like.scenario, concurrency=disaggregated.users / disaggregated.decode_workers)
        pools: list[tuple[str, Task, ServeLayout]] = [("prefill", "prefill", disaggregated.prefill), ("decode", "decode", disaggregated.decode)]
        for words, task, layout in pools:
            start = start_of(self.engine, replace(like.replica, layout=layout, ep_system=disaggregated.ep_system, ep_by_flag=False), scenario, task)
            yield f"Disaggregated, {words}: {f'{layout.name} does not start: {start.refuses}' if start.refuses else start.command}"
        if start.router:
            yield f"Disaggregated, router: {start.router}"

    def to_dict(self) -> ByName:
        """Plain values for JSON. Times in milliseconds."""
        found = self.disaggregated
        pools = found and _milliseconds(asdict(found) | {"prefill": found.prefill.name, "decode": found.decode.name})
        return {
            **named(self, "model", "cluster", "gpus"), "engine": self.engine.name,
            "slo": {"ttft_ms": self.slo.ttft, "tpot_ms": self.slo.tpot}, **named(self, "users", "gpus_for_users", "gpus_for_users_and_a_loss"),
            **named(self, "sentences", "advice", "trust", "launch"), **({"replays": [one.to_dict() for one in self.replays]} if self.replays else {}),
            "best": [self._point(point) for point in self.best], "front": [self._point(point) for point in self.front],
            "disaggregated": pools, "apart": pools, "what_ifs": [*map(_change, self.what_ifs)],
        } | named(self, "overlap", "break_even", "systems", "layers", "slots", "formats") | {
            "rejected": REJECTED.values(self.rejected), "header": list(self.header),
        }  # fmt: skip

    def points_of(self, points: Iterable[ServePoint]) -> Rows:
        """Rows of `POINTS`."""
        return [self._point(point) | {"ep_system": point.system or None} for point in points]

    def changes(self) -> Rows:
        """Rows of `WHAT_IFS`."""
        now, slots = (self.best[0].tokens_per_gpu, self.best[0].replica.layout.slots) if self.best else (1.0, 0)
        return [_change(one) | {"how": one.how + _balanced(one, slots), "gain": one.tokens_per_gpu / now - 1} for one in self.what_ifs]

    def __str__(self) -> str:
        return "\n".join((*self.sentences(), *self.trust()))

    def _interval(self, point: ServePoint) -> Interval:
        return self.learned or served_interval(point.replica, point.served.tpot / 1e3)

    def _point(self, point: ServePoint) -> ByName:
        tpot = point.served.tpot / 1e3
        ends = list(self._interval(point).around(tpot))
        found = point_dict(point) | {"tpot_ms_90": ends, "outside": outside_of(point.replica, point.scenario)}
        return found | POINTS.more(found)


def _balanced(one: ServeWhatIf, slots: int) -> str:
    """What goes on has more slots, filled with copies, than the point beside it, so EPLB balances it."""
    return " with EPLB" if one.how and one.point and one.point.replica.layout.slots > slots else ""


def _change(one: ServeWhatIf) -> ByName:
    layout = one.point and one.point.replica.layout.name
    return named(one, "name", "how") | {"tokens_per_s_gpu": one.tokens_per_gpu, "layout": layout}


def _weights(formats: Formats) -> str:
    """ "fp8-block", or "bf16 and mxfp4"."""
    return " and ".join(sorted(set(formats.weights()[:3])))


def sharing(best: Sequence[ServePoint]) -> ServePoint:
    """The best point whose GPUs share experts, else the best: EPLB is tried there."""
    return next((point for point in best if point.replica.layout.ep > 1), best[0])


def _milliseconds(disaggregated: ByName) -> ByName:
    served, sent, _ = (disaggregated.pop(name) for name in ("served", "transfer", "ep_system"))
    return disaggregated | {"tpot_ms": served["tpot"] / 1e3, "ttft_ms": served["ttft"] / 1e3, "transfer_ms": sent / 1e3}


def _named(point: ServePoint) -> str:
    system = f" with {point.system}" if point.system else ""
    return f"{point.replica.layout.name}{system}"


def _times(point: ServePoint) -> str:
    return f"TPOT {point.served.tpot / 1e3:.1f} ms, TTFT {point.served.ttft / 1e3:,.0f} ms"


POINTS = Columns(
    "layout=layout", "EP system=ep_system", "concur-\nrency=users:g", "tokens/s\nper GPU=tokens_per_s_gpu:,.0f",
    "tokens/s\nper user=tokens_per_s_user:.1f", "TPOT\nms=tpot_ms:.1f", "90 % of\nruns, ms=tpot_ms_90:.0f",
    "TTFT\nms=ttft_ms:,.0f", "prefill\n%=prompt_share:.0%", "limit=limit",
)  # fmt: skip
SYSTEMS = Columns(
    "EP system=system", "form=form", "MoE layer\nus=layer:,.0f", "closed form\nus=closed:,.0f", "whole layer,\nmerged us=merged:,.0f",
    "closed form\nus=closed_whole:,.0f", Column("over", "merged over\nclosed, %", "+.0%", lambda one: one.merged / one.closed_whole - 1),
    "TPOT\nms=tpot_ms:.1f",
)  # fmt: skip
WHAT_IFS = Columns(
    Column("changed", of=lambda row: ": ".join(filter(None, (row["name"], row["how"])))), "layout", "tokens/s\nper GPU=tokens_per_s_gpu:,.0f",
    "gain\n%=gain:+.0%",
)  # fmt: skip
REJECTED = Columns(Column("layout", of=lambda one: one.layout.name), Column("reason", "why"))


def memory_line(point: ServePoint) -> str:
    """What a GPU of the point holds."""
    memory = point.memory
    return (
        f"Memory of a GPU: {memory.weights / 1e9:.1f} GB weights, {memory.buffers / 1e9:.1f} GB buffers, {memory.free / 1e9:.1f} GB for KV: "
        f"{memory.requests:,} requests of an attention group."
    )
