"""A ServeGen client: rate and law of arrivals by ten minutes (CSV without a header), and histograms of tokens by six hours in the JSON beside it.

The histograms are Python's text of a dict. Requests are drawn; hours without requests before the first are left out.
"""

from ast import literal_eval
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dysharp.base.errors import ConfigError, show
from dysharp.serving.replay.request import Request

NAME, BESIDE = "ServeGen client", ("trace.csv", "dataset.json")
BLOCK = 0
COLUMNS = ("start", "rate", "variation", "law", "first", "second")
PERIOD, HISTOGRAM = 600.0, 21_600
SEED = 0


def fits(first: Any) -> bool:
    """Whether the first line is of this format: six columns, the fourth a law or empty."""
    return isinstance(first, list) and len(first) == len(COLUMNS) and first[3] in ("", "Gamma", "Weibull") and first[0].isdigit()


def read(lines: Iterable[tuple[str, Any]], beside: dict[str, Any]) -> Iterator[Request]:
    """The requests of all periods, each drawn by its law with the rate of the period. Raises `ConfigError` for a damaged line."""
    draw, begin = np.random.default_rng(SEED), None
    for where, row in lines:
        try:
            start, rate, first = float(row["start"]), float(row["rate"]), float(row["first"])
        except ValueError:
            raise ConfigError(f"{where}: found {show(','.join(map(str, row.values())))}, expected start, rate and a law's parameters") from None
        if rate <= 0:
            continue
        begin = start if begin is None else begin
        held = beside.get(str(int(start // HISTOGRAM * HISTOGRAM)), {})
        prompts, outputs = (_tokens(held.get(key, "{}"), f"{where}: {key}") for key in ("input_tokens", "output_tokens"))
        count = int(2 * rate * PERIOD) + 1
        gaps = draw.gamma(first, size=count) if row["law"] == "Gamma" else draw.weibull(first, count)
        times = np.cumsum(gaps / gaps.mean() / rate)
        times = times[times < PERIOD]
        pairs = zip(draw.choice(prompts[0], len(times), p=prompts[1]), draw.choice(outputs[0], len(times), p=outputs[1]), strict=True)
        for at, (prompt, output) in zip(times.tolist(), pairs, strict=True):
            yield Request(start - begin + at, max(1, int(prompt)), int(output))


def _tokens(text: Any, where: str) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Tokens and their probabilities."""
    try:
        found = literal_eval(text)
        weights = np.array(list(found.values()), dtype=float)
        if not weights.sum() > 0:
            raise ValueError
        return [int(key) for key in found], weights / weights.sum()
    except (ValueError, SyntaxError, AttributeError, TypeError):
        raise ConfigError(f"{where}: found {show(text)}, expected a dict of tokens and probabilities") from None
