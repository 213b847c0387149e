"""Wiring and routes: who is behind every port, and the port towards every terminal."""

import numpy as np

from dysharp.base import I64, frozen
from dysharp.engine.flit.config import NetworkConfig

NOBODY = -(1 << 40)


@frozen
class Wiring:
    """`to [n_routers, radix]`: global input port behind an output, -1 - terminal for a sink, NOBODY for an unused port; `frm`: the
    output port or source in front of an input, likewise; `ports [n_routers]`: ports in use; `route [n_routers, n_terminals]`: output
    port, or -1 - level for "any port up" of a tree."""

    to: I64
    frm: I64
    ports: I64
    route: I64


def wire(config: NetworkConfig) -> Wiring:
    """The wiring of a topology."""
    return {"fly": _fly, "fattree": _tree, "ring": _ring}[config.topology](config)


def _blank(config: NetworkConfig, n_routers: int) -> Wiring:
    to, frm = (np.full((n_routers, config.radix), NOBODY, np.int64) for _ in range(2))
    return Wiring(to, frm, np.full(n_routers, config.radix, np.int64), np.full((n_routers, config.n_terminals), NOBODY, np.int64))


def _link(w: Wiring, router: int, port: int, to_router: int, to_port: int) -> None:
    radix = w.to.shape[1]
    w.to[router, port] = to_router * radix + to_port
    w.frm[to_router, to_port] = router * radix + port


def _replace(number: int, base: int, digit: int, value: int) -> tuple[int, int]:
    """`number` with one digit replaced, and the digit it had."""
    old = number // base**digit % base
    return number + (value - old) * base**digit, old


def _fly(config: NetworkConfig) -> Wiring:
    """k-ary n-fly: stage s replaces digit n - 1 - s of the position by that of the destination, so there is one path per pair."""
    k, n = config.k, config.n
    per_stage = k ** (n - 1)
    w = _blank(config, n * per_stage)
    dest = np.arange(k**n)
    for stage in range(n):
        for a in range(per_stage):
            r = stage * per_stage + a
            w.route[r] = dest // k ** (n - 1 - stage) % k
            for port in range(k):
                if stage == 0:
                    w.frm[r, port] = -1 - (a * k + port)
                if stage == n - 1:
                    w.to[r, port] = -1 - (a * k + port)
                else:
                    there, old = _replace(a, k, n - 2 - stage, port)
                    _link(w, r, port, (stage + 1) * per_stage + there, old)
    return w


def _tree(config: NetworkConfig) -> Wiring:
    """k-ary n-tree: ports 0 .. k-1 down, k .. 2k-1 up; up to the first common ancestor by any port, then down the only way."""
    k, n = config.k, config.n
    per_level = k ** (n - 1)
    w = _blank(config, n * per_level)
    dest = np.arange(k**n)
    for level in range(n):
        for a in range(per_level):
            r = level * per_level + a
            below = dest // k // k**level == a // k**level
            w.route[r] = np.where(below, dest % k if level == 0 else dest // k ** (level) % k, -1 - level)
            if level == n - 1:
                w.ports[r] = k
            for port in range(k):
                if level == 0:
                    w.frm[r, port] = w.to[r, port] = -1 - (a * k + port)
                if level < n - 1:
                    there, old = _replace(a, k, level, port)
                    _link(w, r, k + port, r - a + per_level + there, old)
                    _link(w, r - a + per_level + there, old, r, k + port)
    return w


def _ring(config: NetworkConfig) -> Wiring:
    """One direction, no dateline: port 0 is the terminal, port 1 the next router. Full rings deadlock, and tests of deadlock need them."""
    k = config.k
    w = _blank(config, k)
    for r in range(k):
        w.frm[r, 0] = w.to[r, 0] = -1 - r
        _link(w, r, 1, (r + 1) % k, 1)
        w.route[r] = np.where(np.arange(k) == r, 0, 1)
    return w
