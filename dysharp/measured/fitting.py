"""Fitting constants to measurements: bounded, robust least squares on relative errors.

Small on purpose (NumPy only): Levenberg-Marquardt in the logarithm of every constant, a numerical Jacobian, values
clipped to [low, high], and a loss that grows linearly for large errors, so that a few odd measurements do not pull a
constant.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dysharp.base import F64, Amounts, Tally, frozen

Values = Mapping[str, float]
Predict = Callable[[Values], F64]
STEP = 1e-4  # of a logarithm, for the Jacobian
SOFT = 0.05  # relative error from which the loss grows linearly
TINY = 1e-12
LEAST_EFFECT = 0.02
"""Rule: a measurement sees a constant if d ln(prediction) / d ln(constant) is at least this large."""
LEAST_ROWS = 3
"""Rule: a constant that fewer measurements see is not fitted to them."""
MOST_ERROR = 0.2
"""Rule: a constant with a larger relative standard error is not determined by its measurements."""
LEAST_SPREAD = 0.02
"""Rule: the smallest assumed spread of repeated measurements."""
MOST_DAMPING = 1e9


@frozen
class Free:
    """A constant that the fit may move between its limits."""

    name: str
    start: float
    low: float
    high: float


def fit(free: Sequence[Free], fixed: Values, predict: Predict, measured: F64, *, weights: F64 | None = None, rounds: int = 60) -> Amounts:
    """Values of `free` that bring `predict(values)` nearest to `measured`, both `[n]` in one unit. `fixed` do not move.

    The error of a measurement is ln(predicted / measured); its loss is quadratic up to `SOFT` and linear beyond.
    `weights`: `[n]`, how often a measurement counts (families of unequal size). Deterministic. Returns only the free
    names.
    """
    names = [f.name for f in free]
    low, high = np.log([f.low for f in free]), np.log([f.high for f in free])
    x = np.clip(np.log([f.start for f in free]), low, high)
    share = np.ones_like(measured) if weights is None else weights

    def errors(logs: F64) -> F64:
        values = dict(fixed) | dict(zip(names, np.exp(logs).tolist(), strict=True))
        return np.log(np.maximum(predict(values), TINY) / measured)

    e, damping = errors(x), 1e-2
    loss = _loss(e, share)
    for _ in range(rounds):
        slopes = _jacobian(errors, x, e, high)
        w = share / np.sqrt(1 + (e / SOFT) ** 2)
        normal, pull = slopes.T @ (w[:, None] * slopes), slopes.T @ (w * e)
        moved = False
        while damping < MOST_DAMPING:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + TINY), -pull)
            candidate = np.clip(x + np.clip(step, -1, 1), low, high)
            e_new = errors(candidate)
            loss_new = _loss(e_new, share)
            if loss_new < loss:
                moved = loss - loss_new > 1e-7 * loss
                x, e, loss, damping = candidate, e_new, loss_new, damping / 5
                break
            damping *= 4
        if not moved:
            break
    return dict(zip(names, np.exp(x).tolist(), strict=True))


def seen_by(names: Sequence[str], values: Values, predict: Predict) -> Tally:
    """For each constant, how many predictions see it at `values` (`LEAST_EFFECT`), in either direction."""
    base, counts = np.log(np.maximum(predict(values), TINY)), Tally()
    for name in names:
        moved = [predict({**values, name: values[name] * np.exp(step)}) for step in (STEP, -STEP)]
        slopes = [np.abs(np.log(np.maximum(p, TINY)) - base) / STEP for p in moved]
        counts[name] = int(np.sum(np.maximum(*slopes) >= LEAST_EFFECT))
    return counts


def spread_of(off: F64) -> float:
    """The spread of residuals `off` (logarithms) around their median: a standard deviation from their median absolute deviation."""
    return max(1.4826 * float(np.median(np.abs(off - np.median(off)))), LEAST_SPREAD)


def standard_errors(slopes: F64, spread: float) -> F64:
    """`[constants]` relative standard error of each constant in a fit of all of them.

    `slopes`: `[rows, constants]` d ln(prediction) / d ln(constant). `spread`: of the residuals (`spread_of`).
    """
    normal = slopes.T @ slopes
    variance = np.diag(np.linalg.pinv(normal + 1e-9 * np.eye(slopes.shape[1])))
    return spread * np.sqrt(np.maximum(variance, 0.0))


def _jacobian(errors: Callable[[F64], F64], x: F64, e: F64, high: F64) -> F64:
    """`[n, constants]`; steps away from the upper bound."""
    columns = []
    for i in range(len(x)):
        step = -STEP if x[i] + STEP > high[i] else STEP
        moved = x.copy()
        moved[i] += step
        columns.append((errors(moved) - e) / step)
    return np.stack(columns, axis=1)


def _loss(e: F64, share: F64) -> float:
    return float(np.sum(share * (np.sqrt(1 + (e / SOFT) ** 2) - 1)))
