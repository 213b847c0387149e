"""A tensor-parallel sub-layer: GEMM, ReduceScatter, LayerNorm, AllGather, GEMM. Its shape, its least bytes and its reference."""

import functools

import numpy as np

from dysharp.base import F64, ConfigError, check_word, frozen, read_toml
from dysharp.specs.reading import DATA
from dysharp.workload.collective import ELEMENT_BYTES, Collective

SUB_LAYER = "sub-layer"
LAYERS = {
    "L1": "output projection, LN, first FFN",
    "L2": "second FFN, LN, input projection",
    "L3": "gradients: first FFN, LN, output projection",
    "L4": "gradients: input projection, LN, second FFN",
}
"""The four sub-layers of CAIS (arXiv 2605.05628), section V."""


@frozen
class SubLayer:
    """One sub-layer on `gpus` GPUs with tensor parallelism.

    GPU g has `[tokens, inner]` activations and `[inner, hidden]` weights of the first GEMM, and `[hidden, outer]` weights of the second one.
    The first products are summed over GPUs, normalised row by row, and every GPU multiplies all rows. `dtype`: of what moves, "bf16" or "fp32".

    Raises ConfigError for a size below 1 and an unknown dtype.
    """

    name: str
    gpus: int
    tokens: int
    hidden: int
    inner: int
    outer: int
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        for name in ("gpus", "tokens", "hidden", "inner", "outer"):
            if getattr(self, name) < 1:
                raise ConfigError(f"sub-layer {name}: found {getattr(self, name)}, expected at least 1")
        check_word(self.dtype, ELEMENT_BYTES, f"sub-layer: found dtype {self.dtype!r}")

    operation = SUB_LAYER
    is_even = True

    @property
    def element_bytes(self) -> int:
        """Bytes of an element that moves."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def n_gpus(self) -> int:
        """GPUs, by the name that a Routing has for them."""
        return self.gpus

    @property
    def size(self) -> int:
        """Bytes S of the activations that are summed, and of those that are gathered."""
        return self.tokens * self.hidden * self.element_bytes

    @property
    def flops(self) -> tuple[int, int]:
        """Operations of both GEMMs on one GPU."""
        return 2 * self.tokens * self.inner * self.hidden, 2 * self.tokens * self.hidden * self.outer

    @property
    def description(self) -> str:
        """A few words for headers and Rows."""
        return f"{SUB_LAYER} {self.name}: {self.tokens} tokens x {self.hidden} in {self.dtype}, GEMMs of {self.inner} and {self.outer} columns"

    def least_bytes(self, *, in_switch: bool) -> tuple[int, int]:
        """Least bytes (out of, into) a GPU. The switch merges sums and loads: S each way; without it 2 (N - 1) / N S."""
        n = self.gpus
        if n == 1:
            return 0, 0
        through = self.size if in_switch else 2 * self.size * (n - 1) // n
        return through, through

    def inputs(self, seed: int) -> tuple[list[F64], list[F64], list[F64]]:
        """Activations `[tokens, inner]`, first weights `[inner, hidden]` and second weights `[hidden, outer]` of every GPU: small whole
        numbers, so that sums are exact in any order."""
        rng = np.random.default_rng(np.random.SeedSequence([seed, 34]))
        shapes = ((self.tokens, self.inner), (self.inner, self.hidden), (self.hidden, self.outer))
        a, b, c = ([rng.integers(-3, 4, shape).astype(np.float64) for _ in range(self.gpus)] for shape in shapes)
        return a, b, c

    def reference(self, a: list[F64], b: list[F64], c: list[F64]) -> list[F64]:
        """`[tokens, outer]` of every GPU, by NumPy alone. A whole-number norm keeps every value exact."""
        total: F64 = np.sum([x @ w for x, w in zip(a, b, strict=True)], axis=0)
        rows = norm(total)
        return [rows @ w for w in c]


def norm(rows: F64) -> F64:
    """Rows less their mean over a power of two near their spread, in whole numbers: it mixes all columns of a row as LayerNorm does."""
    centred = rows - np.floor(rows.mean(axis=1, keepdims=True))
    spread = np.exp2(np.floor(np.log2(np.maximum(1.0, np.abs(centred).mean(axis=1, keepdims=True)))))
    return np.asarray(np.floor(8 * centred / spread))


@frozen
class _DenseShape:
    """A dense model as its sub-layers need it: widths, tokens of a batch, and number of layers."""

    hidden: int
    ffn: int
    sequence: int
    batch: int
    layers: int

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.sequence * self.batch


@functools.cache
def shapes() -> dict[str, _DenseShape]:
    """The packaged shapes by name (`specs/data/tensor_parallel/`)."""
    tables = (read_toml(path) for path in sorted((DATA / "tensor_parallel").iterdir()))
    return {table.pop("name"): _DenseShape(**table) for table in tables}


def sub_layer(model: str, layer: str, gpus: int, dtype: str = "bf16", *, times: int = 1) -> SubLayer:
    """Sub-layer `layer` of `model` on `gpus` GPUs. `times`: factor of both widths. Raises ConfigError for unknown names.

    The FFN has two matrices, as GPT's; the input projection makes queries, keys and values.
    """
    check_word(model, shapes(), f"sub-layer: found model {model[:60]!r}")
    check_word(layer, LAYERS, f"sub-layer: found layer {layer[:60]!r}")
    shape = shapes()[model]
    hidden, ffn = shape.hidden * times, shape.ffn * times
    ends = {"L1": (hidden, ffn), "L2": (ffn, 3 * hidden), "L3": (ffn, hidden), "L4": (3 * hidden, ffn)}[layer]
    wider = f" x{times}" if times > 1 else ""
    inner, outer = (max(1, width // gpus) for width in ends)
    return SubLayer(f"{layer} of {model}{wider}", gpus, shape.tokens, hidden, inner, outer, dtype)


def parse_sub_layer(text: str, gpus: int) -> SubLayer:
    """The SubLayer of "sub-layer:MODEL:LAYER" (or MODEL*TIMES, widths multiplied) or of "sub-layer:TOKENSxHIDDENxINNERxOUTER", perhaps with
    ":DTYPE" behind. Raises ConfigError for other text."""
    words = text.split(":")
    sizes = words[1].split("x") if len(words) in (2, 3) else []
    if len(sizes) == 4 and all(size.isdecimal() and len(size) < 10 for size in sizes):
        tokens, hidden, inner, outer = map(int, sizes)
        return SubLayer(words[1], gpus, tokens, hidden, inner, outer, words[2] if len(words) == 3 else "bf16")
    model, _, times = words[1].partition("*") if len(words) in (3, 4) else ("", "", "")
    if not model or (times and times not in ("1", "2", "4", "8")):
        raise ConfigError(f"workload: found {text[:60]!r}, expected {SUB_LAYER}:MODEL:LAYER, such as {SUB_LAYER}:llama-7b:L1, or sizes")
    return sub_layer(model, words[2], gpus, words[3] if len(words) == 4 else "bf16", times=int(times or 1))


Work = Collective | SubLayer
"""A workload beside the Routing of a MoE layer."""
