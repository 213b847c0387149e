"""Predictions of serving runs: the run step by step where prefill and decode share GPUs, prompt by prompt where they are apart."""

from dataclasses import dataclass

from dysharp.measured.measurements import Unsupported
from dysharp.measured.serving.rows import STEPS, ServingRow
from dysharp.measured.serving.setting import ServeSetting, setting_of, step_setting_of
from dysharp.serving.events import run_closed_loop
from dysharp.serving.pools import Pool, run_pools
from dysharp.serving.step import step_time
from dysharp.serving.step_table import StepTable
from dysharp.serving.two_batches import overlapped_us

TPOT, TTFT, LATENCY, STEP = "serving", "serving-ttft", "serving-latency", "serving-step"
APART = "1.2.0rc6.post3"
"""Engine version whose rows are suspected of speculation: they are predicted and in no bar."""
SINCE = "2026-02"
"""Month from which benchmarks warm up with as many requests as users, so that a TTFT has no graph capture."""
COLD_MS, COLD_USERS = 1000.0, 30
"""A TTFT of seconds with few users, prefill apart, is a cold start."""
FEW_USERS = 4


@dataclass(frozen=True, slots=True)
class ServingCase:
    """One row and its prediction in milliseconds; None with a reason in `note`."""

    row: ServingRow
    tpot_ms: float | None = None
    ttft_ms: float | None = None
    note: str = ""
    step_ms: float | None = None

    @property
    def id(self) -> str:
        """Name of the row."""
        return self.row.id

    @property
    def apart(self) -> bool:
        """Whether the row is in no bar."""
        return APART in self.row.text("engine_version")

    @property
    def scored(self) -> bool:
        """Whether the row's quality counts."""
        return self.row.text("quality") in ("A", "B", "") and self.row.text("mode") in ("agg", "disagg") and not self.apart

    def error(self, family: str) -> float | None:
        """Predicted over measured, minus 1, in percent."""
        measured, predicted = self._pair(family)
        return None if measured is None or predicted is None else 100 * (predicted / measured - 1)

    def _pair(self, family: str) -> tuple[float | None, float | None]:
        """Measured and predicted milliseconds."""
        tpot, ttft = ((self.row.numbers[name], mine) for name, mine in (("tpot_ms", self.tpot_ms), ("ttft_ms", self.ttft_ms)))
        if family == STEP:
            return self.row.step_ms, self.step_ms
        if family != LATENCY:
            return tpot if family == TPOT else ttft
        after = self.row.degrees["osl"] - 1
        whole = [None if first is None or each is None else first + after * each for first, each in zip(ttft, tpot, strict=True)]
        return whole[0], whole[1]

    @property
    def warm(self) -> bool:
        """Whether the TTFT is judged: of a recent run that is no cold start."""
        ttft = self.row.numbers["ttft_ms"]
        users = self.row.degrees["concurrency"]
        cold = self.row.text("mode") == "disagg" and ttft is not None and ttft > COLD_MS and users <= COLD_USERS
        return self.scored and self.row.text("measured") >= SINCE and not cold

    @property
    def few(self) -> bool:
        """Whether the TTFT of few users is judged."""
        return self.warm and self.row.degrees["concurrency"] <= FEW_USERS


def predict_row(row: ServingRow) -> ServingCase:
    """The prediction of one row."""
    try:
        if row.text("mode") in STEPS:
            return ServingCase(row, step_ms=predict_step(row) / 1e3)
        tpot, ttft = predict_setting(setting_of(row))
    except Unsupported as error:
        return ServingCase(row, note=str(error))
    return ServingCase(row, tpot / 1e3, ttft / 1e3)


def predict_step(row: ServingRow) -> float:
    """The step of a row that measures steps alone, in microseconds."""
    replica, batch, overlaps = step_setting_of(row)
    return overlapped_us(replica, batch) if overlaps else step_time(replica, batch).device


def predict_setting(setting: ServeSetting) -> tuple[float, float]:
    """(TPOT, TTFT) in microseconds. All users decode at once: the measured engine ran them, whatever its memory."""
    load, engine = setting.load, setting.engine
    if setting.decode is not None:
        pools = [
            Pool(StepTable(replica, engine, load, max(1.0, load.users / workers / replica.layout.dp)), workers)
            for replica, workers in zip((setting.replica, setting.decode), setting.workers, strict=True)
        ]
        served = run_pools(pools[0], pools[1], load, ratio=setting.ratio, rounds=setting.rounds)
        return served.tpot, served.ttft
    top = load.users / setting.replica.layout.dp
    done = run_closed_loop(StepTable(setting.replica, engine, load, top), load, top, ratio=setting.ratio, rounds=setting.rounds)
    return done.tpot, done.ttft
