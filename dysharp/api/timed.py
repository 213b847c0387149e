"""`trace`: when one run did what, for Perfetto or a picture."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from dysharp.analysis import Row
from dysharp.analysis.death import death
from dysharp.analysis.timeline import Recording, Timeline, Window, make_timeline, record
from dysharp.analysis.timeline.chakra import write_chakra
from dysharp.analysis.timeline.links import GROUPS, POOL_GROUP
from dysharp.analysis.timeline.perfetto import write_perfetto
from dysharp.analysis.timeline.task_graph import task_graph
from dysharp.base import ByName, ConfigError, OnProgress, frozen, ps_to_us
from dysharp.engine.burst.run import Timing
from dysharp.program import Program, Trace
from dysharp.runs import RequestArgs, collective_options, options_by_system, options_of, run_collective, telling
from dysharp.runs.memory import check_memory, gemm_variants
from dysharp.runs.one_pass import Engine, run_pass
from dysharp.runs.request import CollectiveRequest, Workload, make_collective_request, make_request, make_workload, takes
from dysharp.systems import System, get_system
from dysharp.systems.collectives import CollectiveSystem, get_collective

_LAST_US = 4e12
"""Times are counted in picoseconds, in 63 bits."""


@frozen
class Timed:
    """A run: its Row (equal to the Row of `run`), its Timeline and the record of its events."""

    row: Row
    timeline: Timeline
    recording: Recording
    dies: tuple[tuple[str, str], ...] = ()
    """Facts of what dies (`analysis.death`)."""

    @property
    def words(self) -> str:
        """What was run, in one line."""
        return f"{self.row.system} ({self.row.form} form), {self.row.asked}"

    def busy(self) -> list[tuple[str, str, float, float]]:
        """(group, track, mean, maximum over GPUs) of the us in which the slices of a track run, inside the window. Left out: pools, whose lanes
        overlap, and beside `only` tracks that name no token."""
        sums: dict[tuple[str, str], list[float]] = {}
        for track, ps in zip(self.timeline.tracks, self.timeline.sums_ps().tolist(), strict=True):
            if (track.group in GROUPS and track.group != POOL_GROUP) or track.group.endswith((" out", " in")):
                of_gpu = sums.setdefault((track.group, track.name), [0.0] * self.timeline.n_gpus)
                of_gpu[track.gpu] += ps_to_us(ps)
        order = sorted(sums.items(), key=lambda item: GROUPS.index(item[0][0]) if item[0][0] in GROUPS else len(GROUPS))
        return [(group, name, sum(us) / len(us), max(us)) for (group, name), us in order if any(us) or not self.timeline.window.tokens]

    def to_dict(self) -> ByName:
        """The Row, and what the Timeline holds, as plain values for JSON."""
        line = self.timeline
        busy = [{"group": group, "track": name, "mean_us": mean, "max_us": most} for group, name, mean, most in self.busy()]
        counts = {"slices": len(line.slices), "tracks": len(line.tracks), "flows": len(line.flows), "merged": line.merged}
        found = {"row": self.row.to_dict(), "timeline": {**counts, "busy": busy}}
        return found | ({"dies": [list(fact) for fact in self.dies]} if self.dies else {})

    def save(self, path: str | Path) -> Path:
        """Write a Perfetto trace to `path`; compressed where the name ends in .gz. Raises ConfigError where the file cannot be written."""
        return write_perfetto(self.timeline, path, self.words)

    def save_chakra(self, folder: str | Path, parts: int = 8) -> list[Path]:
        """Write the run as Chakra execution traces, `folder/SYSTEM.GPU.et`, for other simulators. The whole run, whatever window the Timeline has.

        `parts`: most nodes of one operator between two GPUs, and of one expert's GEMM. Raises ConfigError where a file cannot be written to.
        """
        return write_chakra(task_graph(self.recording, parts), self.recording.program, folder, self.row.system, self.words)

    def __repr__(self) -> str:
        return f"<Trace of {self.row.system}: {len(self.timeline.slices)} slices; save(path) writes a Perfetto trace>"


@takes(RequestArgs)
def trace(
    system: str,
    start_us: float = 0.0,
    end_us: float | None = None,
    only: Sequence[int] = (),
    follow: Sequence[int] | None = None,
    dies: str | None = None,
    **request: Unpack[RequestArgs],
) -> Timed:
    """Simulate one pass of one system at burst level, and keep every train of a link and every GEMM.

    start_us, end_us  keep slices that overlap this time. None: to the end
    only              keep slices of these global tokens (GPU * tokens per GPU + token). (): of all
    follow            global tokens whose way is drawn as flows. None: the first token of each GPU, or those of `only`

    dies              "gpu:3@50" or "plane:0@50": say what is lost if it dies at 50 percent of the pass, who notices, how long it takes

    The Row is equal to the Row of `run`. Raises TypeError and ConfigError as `run`, and ConfigError for packet level and for two passes.
    """
    if request["fidelity"] != "burst":
        raise ConfigError(f'trace: found fidelity "{request["fidelity"]}", expected "burst"')
    if request["workload"] is not None:
        if only or follow or dies:
            raise ConfigError("trace: found tokens, or what dies, beside a workload, expected none (a collective has no tokens)")
        row, run = _recorded_collective(get_collective(system), make_collective_request(request))
        return Timed(row, make_timeline(run, None, window=_window(start_us, end_us)), run)
    asked = make_request(request)
    chosen = get_system(system)
    if asked.direction == "both":
        raise ConfigError('trace: found direction "both", expected "fwd" or "bwd"')
    _check_tokens(only, asked.tokens * asked.cluster.n_gpus, "only")  # before a long range becomes a tuple
    window = dataclasses.replace(_window(start_us, end_us), tokens=tuple(only))
    given = options_of(chosen, options_by_system(asked.options, {chosen.name: chosen}, asked.model, asked.cluster)[chosen.name])
    check_memory(chosen, asked, given)
    workload = make_workload(asked)
    followed = follow if follow is not None else only or tuple(range(0, asked.tokens * asked.cluster.n_gpus, asked.tokens))
    _check_tokens(followed, asked.tokens * asked.cluster.n_gpus, "follow")
    row, run, options = _recorded(chosen, given, workload)
    routing = chosen.served(workload.routing, options)
    if start_us >= row.time_us:
        raise ConfigError(f"trace: found times behind the run, expected a begin before its end at {row.time_us:.2f} us")
    lost = death(dies, run.program, run.trace, routing, asked.cluster, chosen) if dies else ()
    return Timed(row, make_timeline(run, routing, follow=tuple(followed), window=window), run, tuple(lost))


def _window(start_us: float, end_us: float | None) -> Window:
    """The times that a Timeline keeps. Raises ConfigError for no interval."""
    if not 0 <= start_us < (_LAST_US if end_us is None else end_us) <= _LAST_US:
        found = f"{start_us:g} to {'the end' if end_us is None else f'{end_us:g}'} us"
        raise ConfigError(f"trace: found {found}, expected a rising interval of times from 0 to {_LAST_US:g}")
    return Window(int(start_us * 1e6), 1 << 62 if end_us is None else int(end_us * 1e6))


def _recorded_collective(system: CollectiveSystem, request: CollectiveRequest) -> tuple[Row, Recording]:
    """The Row of one collective, and its recording."""
    runs: list[Recording] = []
    options = collective_options({system.name: system}, request.options)[system.name]
    return run_collective(system, request, options, engine=_recorder(runs)), runs[0]


def _recorder(runs: list[Recording]) -> Engine:
    """An engine that appends what it records to `runs`."""

    def engine(program: Program, progress: OnProgress) -> tuple[Trace, Timing, ByName]:
        run, timing, reads = record(program, progress)
        runs.append(run)
        return run.trace, timing, dataclasses.asdict(reads)

    return engine


def _check_tokens(tokens: Sequence[int], n: int, name: str) -> None:
    for token in tokens:
        if not 0 <= token < n:
            raise ConfigError(f"{name}: found token {token}, expected 0 to {n - 1}")


def _recorded(system: System, given: Any, workload: Workload) -> tuple[Row, Recording, Any]:
    """The fastest GEMM variant: its Row, its recording, its options."""
    request, runs = workload.request, list[Any]()
    on_stage = telling(request.progress, system.name)
    variants = gemm_variants(system, request, given)
    rows = [run_pass(system, options, workload, request.direction, on_stage, engine=_recorder(runs))[0] for options in variants]
    best = min(range(len(rows)), key=lambda i: rows[i].time_us)
    return rows[best], runs[best], variants[best]
