"""The tiny machines that the checker explores.

One token row is one packet, so its plane is the plane of its only chunk. Target lists, weights and sizes are such that
every table overflows and every kind of packet meets every other kind.
"""

from dataclasses import dataclass, replace

from dysharp.base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its source GPU, the switch plane of its chunk, its experts with integer gate weights."""

    source: int
    plane: int
    experts: tuple[int, ...]
    value: int
    weights: tuple[int, ...]
    dispatch_retries: int = 0
    combine_retries: int = 0


@dataclass(frozen=True, slots=True)
class Config:
    """A tiny machine. Experts are blocked by GPU. Table sizes are entries.

    `timeouts`: any live reduction entry may expire at any moment. Raises ConfigError for impossible tokens.
    """

    gpus: int
    planes: int
    experts_per_gpu: int
    tokens: tuple[Token, ...]
    tile_rows: int = 2
    tlb_entries: int = 1
    mshrs: int = 2
    reduction_entries: int = 1
    tracker_entries: int = 1
    readiness_entries: int = 1
    timeouts: bool = True

    def __post_init__(self) -> None:
        n_experts = self.gpus * self.experts_per_gpu
        for t, token in enumerate(self.tokens):
            if len(set(token.experts)) < len(token.experts) or any(not 0 <= e < n_experts for e in token.experts):
                raise ConfigError(f"token {t}: found experts {token.experts}, expected distinct ones below {n_experts}")
            if not (0 <= token.source < self.gpus and 0 <= token.plane < self.planes):
                raise ConfigError(f"token {t}: found source {token.source} and plane {token.plane}, expected below {self.gpus} and {self.planes}")
            if len(token.weights) != len(token.experts):
                raise ConfigError(f"token {t}: found {len(token.weights)} weights for {len(token.experts)} experts")

    def hub_of(self, expert: int) -> int:
        """The GPU of an expert."""
        return expert // self.experts_per_gpu

    def port_of(self, token: int) -> int:
        """The port that holds the sessions of `token`: it faces the source GPU."""
        return self.tokens[token].plane * self.gpus + self.tokens[token].source

    def local(self, token: int, gpu: int) -> tuple[int, ...]:
        """The experts of `token` on `gpu`."""
        return tuple(e for e in self.tokens[token].experts if self.hub_of(e) == gpu)

    def remote(self, token: int) -> int:
        """Targets of `token` behind the switch."""
        return len(self.tokens[token].experts) - len(self.local(token, self.tokens[token].source))

    def n_active(self, gpu: int) -> tuple[int, ...]:
        """Rows of each local expert."""
        first = gpu * self.experts_per_gpu
        return tuple(sum(e in t.experts for t in self.tokens) for e in range(first, first + self.experts_per_gpu))


def expert_function(expert: int, value: int) -> int:
    """The output of an expert for a token: linear neither in expert nor in value, so that a mixed-up row shows."""
    return value * value + (expert + 2) * value + 7 * expert


def dense_output(config: Config) -> tuple[int, ...]:
    """The output of the layer by direct computation: one number per token."""
    return tuple(sum(w * expert_function(e, t.value) for e, w in zip(t.experts, t.weights, strict=True)) for t in config.tokens)


def _two_gpus() -> Config:
    """Four tokens that meet in hubs, tiles and a port.

    One token has both experts on one remote GPU. One token has no remote expert.
    """
    tokens = (
        Token(0, 0, (0, 2), 101, (2, 3)),
        Token(0, 0, (2, 3), 211, (5, 7)),
        Token(1, 0, (0, 1), 307, (11, 13)),
        Token(1, 1, (1, 2), 401, (17, 19)),
    )
    return Config(gpus=2, planes=2, experts_per_gpu=2, tokens=tokens)


def _three_gpus() -> Config:
    """Two tokens of one GPU whose sessions share a port with one entry. A third GPU adds to the first sum."""
    tokens = (Token(0, 0, (1, 2), 101, (2, 3)), Token(0, 0, (0, 2), 211, (5, 7)))
    return Config(gpus=3, planes=2, experts_per_gpu=1, tokens=tokens)


def with_retries(config: Config, dispatch: tuple[int, ...], combine: tuple[int, ...]) -> Config:
    """`config` with retries at any moment: dispatch of token t up to `dispatch[t]` times, combine `combine[t]`."""
    tokens = (replace(token, dispatch_retries=d, combine_retries=c) for token, d, c in zip(config.tokens, dispatch, combine, strict=True))
    return replace(config, tokens=tuple(tokens))


_PAIR = Config(2, 2, 1, (Token(0, 0, (0, 1), 101, (2, 3)),))
_SHARED = Config(2, 2, 1, (Token(0, 0, (0, 1), 101, (2, 3)), Token(0, 0, (1,), 211, (5,))))
_TWO_LOCAL = replace(_three_gpus(), experts_per_gpu=2, tokens=(Token(0, 0, (2, 4), 101, (2, 3)), Token(0, 0, (4, 5), 211, (5, 7))))
_TWO_SOURCES = replace(_three_gpus(), tokens=(Token(0, 0, (1, 2), 101, (2, 3)), Token(1, 0, (0, 2), 211, (5, 7))))
_EMPTY = replace(_SHARED, tokens=(Token(0, 0, (), 101, ()), Token(0, 1, (0,), 211, (5,)), Token(0, 0, (0, 1), 307, (7, 11))))

# The first two machines must be explored completely. The remaining machines add retries, other tables and hard cases.
CONFIGS = {
    "two-gpus": _two_gpus(),
    "three-gpus": _three_gpus(),
    "three-gpus-roomy": replace(_three_gpus(), tlb_entries=2, reduction_entries=2, tracker_entries=2, readiness_entries=2),
    "three-gpus-retries": with_retries(_three_gpus(), (1, 0), (1, 0)),
    "three-gpus-combines-again": with_retries(_three_gpus(), (0, 0), (1, 1)),
    "three-gpus-two-sources": with_retries(_TWO_SOURCES, (1, 0), (0, 1)),
    "two-local-experts": with_retries(_TWO_LOCAL, (0, 1), (0, 1)),
    "pair-retries": with_retries(_PAIR, (1,), (1,)),
    "shared": _SHARED,
    "empty-list": _EMPTY,
    "one-row-tiles": replace(_SHARED, tile_rows=1),
    "no-timeouts": replace(_TWO_LOCAL, timeouts=False),
}
