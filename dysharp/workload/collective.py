"""A collective: a workload without a Routing. What every GPU holds before and after, the least bytes that move, and the reference."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np

from dysharp.base import F64, ConfigError, Numbers, check_word, frozen

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ELEMENT_BYTES = {"bf16": 2, "fp32": 4}
SUFFIX_V = "-v"
"""Of an operation whose shares are listed."""
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB)?")


@frozen
class Collective:
    """One collective over all GPUs of a cluster.

    `operation`: one of `OPERATIONS`. `shares`: bytes of every GPU's share; their sum is `size`, as nccl-tests counts it:

    | operation | size | share of GPU g |
    |---|---|---|
    | all-reduce | the vector of a GPU | the part that g sums, where sums are dealt out |
    | all-gather | the gathered vector | the part that g gives |
    | reduce-scatter | the vector of a GPU | the part whose sum g keeps |
    | all-to-all | the vector of a GPU | the part that every GPU sends to g |
    | broadcast | the vector of GPU 0 | no meaning |

    `dtype`: "bf16" or "fp32", of the elements that are summed. Raises ConfigError for an unknown operation or dtype, no share, a
    negative one, and a share that is no whole number of elements.
    """

    operation: str
    shares: Numbers
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        check_word(self.operation, OPERATIONS, f"collective: found {self.operation!r}")
        check_word(self.dtype, ELEMENT_BYTES, f"collective: found dtype {self.dtype!r}")
        if not self.shares or sum(self.shares) <= 0:
            raise ConfigError(f"collective: found {sum(self.shares)} bytes on {len(self.shares)} GPUs, expected at least 1 byte on 1 GPU")
        for gpu, share in enumerate(self.shares):
            if share < 0 or share % self.element_bytes:
                raise ConfigError(f"collective: found {share} bytes as share of GPU {gpu}, expected a whole number of {self.dtype} elements")

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def gpus(self) -> int:
        """GPUs that take part."""
        return len(self.shares)

    @property
    def n_gpus(self) -> int:
        """GPUs that take part, by the name that a Routing has for them."""
        return self.gpus

    @property
    def size(self) -> int:
        """Bytes, as nccl-tests counts them."""
        return sum(self.shares)

    @property
    def first(self) -> Numbers:
        """`[gpus + 1]` first byte of every share in the vector, and the end."""
        return (0, *np.cumsum(self.shares).tolist())

    @property
    def is_even(self) -> bool:
        """Whether the shares differ by one element at most."""
        return max(self.shares) - min(self.shares) <= self.element_bytes

    @property
    def sums(self) -> bool:
        """Whether the operation adds."""
        return self.operation in ("all-reduce", "reduce-scatter")

    @property
    def description(self) -> str:
        """A few words for headers and Rows."""
        if self.is_even:
            return f"{self.operation} of {_size_text(self.size)} in {self.dtype}"
        shares = f"shares {_size_text(min(self.shares))} to {_size_text(max(self.shares))}"
        return f"{self.operation}{SUFFIX_V} of {_size_text(self.size)} in {self.dtype}, {shares}"

    def shorter(self, size: int) -> Collective:
        """The same collective with about `size` bytes: every share in proportion, in whole elements."""
        unit = self.element_bytes
        return replace(self, shares=tuple(max(unit * (share > 0), share * size // self.size // unit * unit) for share in self.shares))

    def least_bytes(self, *, in_switch: bool) -> tuple[int, int]:
        """Least bytes (out of, into) the busiest GPU. `in_switch`: the switch copies and adds.

        Without a switch that helps, a sum of n vectors moves 2 (n - 1) / n of a vector through every GPU at least; with it, one vector.
        A GPU's own addend or copy needs no link.
        """
        n, size, most, least = self.gpus, self.size, max(self.shares), min(self.shares)
        if n == 1:
            return 0, 0
        if self.operation == "all-reduce":
            through = size if in_switch else -(-2 * size * (n - 1) // n)
            return through, through
        once = most if in_switch else max(most, -(-size * (n - 1) // n))  # without the switch the GPUs send every byte n - 1 times
        if self.operation == "all-gather":
            return once, size - least
        if self.operation == "reduce-scatter":
            return size - least, once
        if self.operation == "all-to-all":
            return size - least, (n - 1) * most
        return size, size

    def inputs(self, seed: int) -> list[F64]:
        """The vector of every GPU before the collective, `[elements]` small whole numbers, so that sums are exact in any order and dtype.

        all-gather: a GPU's vector is its share; broadcast: only GPU 0 has one, others have zeros.
        """
        rng = np.random.default_rng(np.random.SeedSequence([seed, OPERATIONS.index(self.operation)]))
        unit = self.element_bytes
        lengths = [share // unit for share in self.shares] if self.operation == "all-gather" else [self.size // unit] * self.gpus
        vectors = [(rng.integers(1, 5, length) * rng.choice((-1, 1), length)).astype(np.float64) for length in lengths]  # no 0: a lost addend shows
        return [v if self.operation != "broadcast" or gpu == 0 else np.zeros_like(v) for gpu, v in enumerate(vectors)]

    def reference(self, inputs: list[F64]) -> list[F64]:
        """The vector of every GPU after the collective, from `inputs`, by NumPy alone."""
        unit, first = self.element_bytes, self.first
        parts = [slice(first[g] // unit, first[g + 1] // unit) for g in range(self.gpus)]
        if self.operation == "all-gather":
            return [np.concatenate(inputs)] * self.gpus
        if self.operation == "all-to-all":
            return [np.concatenate([vector[part] for vector in inputs]) for part in parts]
        if self.operation == "broadcast":
            return [inputs[0]] * self.gpus
        total = np.sum(inputs, axis=0)
        return [total] * self.gpus if self.operation == "all-reduce" else [total[part] for part in parts]


def _size_text(n_bytes: int) -> str:
    """Bytes as people write them: 64 MiB, 1536 KiB, 100 B."""
    unit = next((name for name, one in reversed(UNITS.items()) if n_bytes >= one and n_bytes % one == 0), "B")
    return f"{n_bytes // UNITS[unit]} {unit}"


def parse_collective(text: str, gpus: int, dtype: str = "bf16") -> Collective:
    """The Collective of "OPERATION:SIZE" or "OPERATION-v:SHARE,SHARE,...", such as "all-reduce:64MiB" on `gpus` GPUs.

    Raises ConfigError for an unknown operation, a size that is no number with B, KiB, MiB or GiB, and a list of another length than `gpus`.
    """
    operation, _, sizes = text.partition(":")
    listed = operation.endswith(SUFFIX_V)
    operation = operation.removesuffix(SUFFIX_V)
    check_word(operation, OPERATIONS, f"workload: found {text[:60]!r}")
    if listed and operation == "broadcast":
        raise ConfigError(f"workload: found {text[:60]!r}, expected broadcast:SIZE (the shares of a broadcast have no meaning)")
    if listed:
        shares = tuple(_bytes(word, text) for word in sizes.split(","))
        if len(shares) != gpus:
            raise ConfigError(f"workload: found {len(shares)} shares in {text[:60]!r}, expected one for each of the {gpus} GPUs")
        return Collective(operation, shares, dtype)
    return even(operation, _bytes(sizes, text), gpus, dtype)


def even(operation: str, size: int, gpus: int, dtype: str = "bf16") -> Collective:
    """A Collective of `size` bytes whose shares differ by one element at most."""
    unit = ELEMENT_BYTES.get(dtype, 1)
    if size % unit:
        raise ConfigError(f"collective: found {size} bytes, expected a whole number of {dtype} elements of {unit} bytes")
    cuts = [unit * (size // unit * gpu // gpus) for gpu in range(gpus + 1)]
    return Collective(operation, tuple(b - a for a, b in itertools.pairwise(cuts)), dtype)


def _bytes(word: str, text: str) -> int:
    match = _SIZE.fullmatch(word.strip())
    if match is None:
        raise ConfigError(f"workload: found size {word[:30]!r} in {text[:60]!r}, expected a number with B, KiB, MiB or GiB, such as 64MiB")
    return int(match[1]) * UNITS[match[2] or "B"]
