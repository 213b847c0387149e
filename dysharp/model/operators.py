"""What a layer is: its operators in the order in which a token meets them, stated once.

Weights, FLOPs, memory, KV cache, kernels of serving, pieces of a training step and the costs of a plan are folds over `operators`.

| kind | what it is |
|---|---|
| `Weight` | a matrix that rows are multiplied with, or a vector of parameters |
| `Core` | products of queries, keys and values |
| `DeltaNetState` | linear attention, Mamba-2 |
| `MemoryOp` | a kernel that memory limits: norm, positions, activation, addition to the residual stream |
| `Sum` | sums of rows over tensor parallel ranks, and the gather before them |
| `RowExchange` | rows of experts that change GPUs |

Weights are named as Megatron stores them: queries, keys and values in one matrix, gate and up in one. `Weight.inputs` and `outputs` are whole; all
other numbers are of one rank of a `Cut`, per token.
"""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

from dysharp.base import frozen, frozen_keywords
from dysharp.specs import WholeModel

Part = Literal["embedding", "attention", "norms", "router", "dense FFN", "routed experts", "shared experts", "head", "MTP"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "norms", "router", "dense FFN", "routed experts", "shared experts", "head", "MTP")
Split = Literal["tp", "none", "experts"]
"""Over which ranks a weight is cut: tensor parallel, not at all, expert and expert tensor parallel."""
PROJECTIONS, UP, POSITIONS, CORE, CONTEXT = "projections", "up projections", "positions", "core attention", "context"
NORMS, RESIDUAL, CONVOLUTION, DENSE, ROUTER, SHARED = "norms", "residual", "convolution", "dense FFN", "router", "shared experts"
COUNTS, EXCHANGE, PERMUTATIONS, EXPERTS, ACTIVATION = "counts", "exchange", "permutations", "experts", "expert activation"
TENSOR = "tensor parallel"
BF16, FP32, E5M6 = 2.0, 4.0, 1.5
ROUTER_BYTES = 12.0
"""Bytes per expert that a router saves: scores, map and row map, FP32 or INT32 each."""
READ, READ_BACK = 2, 3
"""Times that a norm moves its rows, forward (read, write) and backward (read the rows and their gradient, write)."""
ADDED, ADDED_BACK = 3, 2
"""Times that an addition to the residual stream moves its rows (two reads and a write; a copy of the gradient)."""
PASSES = 2
"""Times that positions and joins of parts read and write queries and keys (RoPE, concatenation). Norms of heads read and write them once more."""
ACTIVATION_BACK = 5 / 3
"""Bytes of an activation's backward pass over those of its forward pass: inputs and the gradient are read, gradients are written."""

CLAMPED, BIASED = (8, 10), (14, 18)
"""Times that GPT-OSS's clamps and the bias behind its experts move a row of their width, forward and backward, as Megatron-LM runs them: halves are
clamped and joined before the fused activation (fused_bias_geglu.py, weighted_bias_quick_geglu_impl); the bias is multiplied with FP32 probabilities,
added, joined and cast (experts.py, _apply_bias)."""
SCALED = ((12, 10), (14, 17))
"""Times that positions with YaRN's scale move queries and keys, and their launches: Transformer Engine's kernel takes no scale, so products, a turned
copy, a sum and joins are eager (Megatron-LM, rope_utils.py)."""


class Cut(NamedTuple):
    """What a layout makes of a layer. `shard`: ranks that share the rows outside attention and FFN (sequence parallel): `tp`, or 1."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    shard: int = 1


WHOLE = Cut()


@frozen
class SavedTensor:
    """A tensor that is saved for the backward pass, in bytes per token, or per row of an expert if `routed`.

    `fixed`: bytes that no recipe changes. `kept`: elements in the type in which linears keep their inputs. `module`: drops it when it is computed
    again, as Megatron names it. `linear`: it is the input of a linear. `narrow`: bytes in place of `fixed` where a recipe keeps fewer bits:
    DeepSeek-V3 (3.2.3, 3.3.3) keeps attention outputs as E5M6 and inputs of experts' SwiGLU as FP8, and makes the outputs of all norms again.
    """

    op: str
    fixed: float = 0.0
    module: str = ""
    linear: bool = False
    kept: float = 0.0
    routed: bool = False
    narrow: float = 0.0


@frozen_keywords
class LayerOperator:
    """What every kind has.

    `name`: of the kernel in a serving step. `piece`: part of a layer that a training step times and computes again as one. `saves`: inputs that the
    backward pass needs. `launches`: operations of a training framework that the host launches, forward and backward, counted from the op list of
    a block (`training.host` has the anchors). `scope`: Megatron's graph scope that replays them.
    """

    name: str
    piece: str
    saves: tuple[SavedTensor, ...] = ()
    launches: tuple[float, float] = (0, 0)
    scope: str = ""


@frozen_keywords
class Weight(LayerOperator):
    """`count` equal matrices `[outputs, inputs]`, of which a token uses `used`; a vector has `inputs` 1 and no product.

    `rows`: per token. `n`, `k`: columns and depth of the product on one rank. `joined`: engines compute it in the kernel before. `expands`: it makes
    keys and values per head from latent vectors, which prompts alone need. `exact`: engines multiply it in FP32.
    """

    part: Part
    weight: str
    inputs: int
    outputs: int
    count: int = 1
    used: int = 1
    split: Split = "tp"
    product: bool = True
    """Whether a token is multiplied with it. Else it is a vector or a table that is looked up."""
    rows: float = 1.0
    n: float = 0.0
    k: float = 0.0
    joined: bool = False
    expands: bool = False
    exact: bool = False

    @property
    def parameters(self) -> int:
        """Parameters of all `count`."""
        return self.inputs * self.outputs * self.count

    @property
    def active(self) -> int:
        """Parameters that a token uses."""
        return self.inputs * self.outputs * self.used

    @property
    def macs(self) -> int:
        """Multiplications of a token, forward: 2 FLOPs each."""
        return self.active if self.product else 0


@frozen_keywords
class Core(LayerOperator):
    """Attention of `heads` query heads on one rank, of which context parallel `ranks` have equal parts of every sequence's causal pairs.

    With `kv_rank`, keys and values come from one latent vector of `kv_rank + rope_dim` elements, or are that vector (`shared`). `pool`: a query
    sees the window and entries of so many tokens each (0: none). `index_top`: tokens or entries that a query attends to at most, chosen by
    `index_heads` heads of `index_dim` (0: all).
    """

    heads: float
    kv_heads: float
    qk_dim: int
    v_dim: int
    window: int = 0
    ranks: int = 1
    kv_rank: int = 0
    rope_dim: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_top: int = 0
    shared: bool = False
    pool: int = 0

    @property
    def latent(self) -> int:
        """Elements of a token's latent vector; 0 without latent attention."""
        return self.kv_rank + self.rope_dim if self.kv_rank else 0

    def kept(self, tokens: float) -> float:
        """Keys that a request of `tokens` tokens caches: a window its own, and entries."""
        return min(tokens, self.window or tokens) + (tokens / self.pool if self.pool else 0.0)

    def seen(self, context: float) -> float:
        """Keys that a query attends to behind `context` tokens."""
        near = min(context, self.window or context)
        far = self.kept(context) - near
        return near + min(far, self.index_top or far) if self.pool else min(near, self.index_top or near)


@frozen_keywords
class DeltaNetState(LayerOperator):
    """Linear attention or Mamba-2 on one rank, whose state takes the place of a cache. `tail`: elements of the convolution that stay with a request.

    `products`: of a token with the state: what it holds for the key (delta rule alone), the update, the answer. `scan`: states of all chunks are made
    at once and passed on by a kernel of its own (Mamba-2).
    """

    key_heads: float
    value_heads: float
    key_dim: int
    value_dim: int
    state: float
    tail: float
    products: int
    scan: bool


@frozen_keywords
class MemoryOp(LayerOperator):
    """Elements per token that go through memory: `served` by each of `kernels` fused kernels of an engine, `forward` and `backward` in training by
    `steps` kernels each. `rows`: per token in training, whose ranks share rows outside attention and FFN.

    The router's kernels in an engine: top-k and softmax or sigmoid, counts per expert, sorted rows (vLLM fused_moe; SGLang alike).
    """

    served: float
    kernels: int = 1
    steps: tuple[int, int] = (1, 1)
    forward: float = 0.0
    backward: float = 0.0
    rows: float = 1.0


@frozen_keywords
class Sum(LayerOperator):
    """Rows of `scattered` elements are summed over tensor parallel ranks; with sequence parallelism rows of `gathered` are gathered first."""

    gathered: int
    scattered: int


@frozen_keywords
class RowExchange(LayerOperator):
    """Rows of `width` elements on their way to their experts, or back."""

    width: int


Operators = tuple[LayerOperator, ...]


def operators(model: WholeModel, number: int, cut: Cut = WHOLE) -> Operators:
    """The operators of layer number `number` on one rank of `cut`; layers of MTP follow the last layer."""
    return layer_operators(model, model.kind(number), cut)


@functools.lru_cache(maxsize=1 << 12)
def layer_operators(model: WholeModel, kind: str, cut: Cut = WHOLE) -> Operators:
    """The same of a kind of layer, a word of `WholeModel.stack`."""
    found: list[LayerOperator] = []
    for at, letter in enumerate(kind):
        ffn = letter in "E-"
        if at == 0 or (ffn and model.norms_per_layer > 1):
            found += _norm(model, cut, "FFN norm input" if at else "block input")
        if ffn:
            found += (_experts if letter == "E" else _dense)(model, cut)
        else:
            found += _mixer(model, cut, letter)
    return tuple(found)


def _mixer(model: WholeModel, cut: Cut, letter: str) -> Iterator[LayerOperator]:
    """What stands before an FFN."""
    if letter == "M":
        return _linear(model, cut)
    if model.attention.compressed:
        return _csa(model, cut, letter)
    return _mla(model, cut) if model.attention.mla else _gqa(model, cut, letter == "w")


@functools.lru_cache(maxsize=1 << 12)
def served(ops: Operators) -> Operators:
    """Operators as an engine runs them: without vectors, and with joined matrices as one."""
    out: list[LayerOperator] = []
    for op in ops:
        if isinstance(op, Weight) and op.joined and isinstance(last := out[-1], Weight):
            out[-1] = replace(last, n=last.n + op.n)
        elif not isinstance(op, Weight) or op.product:
            out.append(op)
    return tuple(out)


def is_routed(op: LayerOperator) -> bool:
    """Whether an operator works on rows of routed experts."""
    return isinstance(op, (Weight, MemoryOp)) and op.piece in (EXPERTS, ACTIVATION)


def matrix(
    part: Part, weight: str, inputs: int, outputs: int, cut: Cut, by: Literal["outputs", "inputs", "none"] = "outputs", *, name: str, piece: str,
    saves: tuple[SavedTensor, ...] = (), scope: str = "attn", joined: bool = False,
) -> Weight:  # fmt: skip
    """A matrix that tensor parallelism cuts by its outputs, by its inputs, or not at all: then ranks share the rows."""
    ways = {"outputs": (1.0, outputs / cut.tp, inputs), "inputs": (1.0, outputs, inputs / cut.tp), "none": (1 / cut.shard, outputs, inputs)}
    rows, n, k = ways[by]
    return Weight(
        name=name, piece=piece, saves=saves, launches=(1, 2), scope=scope, part=part, weight=weight, inputs=inputs, outputs=outputs,
        split="none" if by == "none" else "tp", rows=rows, n=n, k=k, joined=joined,
    )  # fmt: skip


def vector(part: Part, weight: str, elements: int, count: int = 1, used: int = 1, split: Split = "none") -> Weight:
    """Parameters without a product."""
    return Weight(name=weight, piece="", part=part, weight=weight, inputs=1, outputs=elements, count=count, used=used, split=split, product=False)


def _norm(model: WholeModel, cut: Cut, saved: str) -> Iterator[LayerOperator]:
    """A norm of the residual stream, and those behind attention or FFN of models with sandwich norms."""
    hidden, n, streams = model.hidden, max(1, model.norms_per_layer // 2), model.streams
    if streams > 1:
        yield vector("norms", "stream mixing", (2 + streams) * streams * (streams * hidden + 1) + 3)  # with biases and three scales
        kept = (SavedTensor("residual streams", BF16 * streams * hidden / cut.shard),)
        yield replace(_mixed(model, cut, "attn"), saves=kept, kernels=2, served=(2 * streams + 1) / 2 * hidden)
    yield vector("norms", "layer norms", hidden * model.norm_vectors * n)
    saves = (SavedTensor(saved, BF16 * hidden / cut.shard),)
    yield MemoryOp(
        name="norms", piece=NORMS, saves=saves, launches=(1, 2), scope="attn", served=2 * hidden, kernels=n, forward=n * READ * hidden,
        backward=n * READ_BACK * hidden, rows=1 / cut.shard,
    )  # fmt: skip


def _mixed(model: WholeModel, cut: Cut, scope: str) -> MemoryOp:
    """One side of a hyper-connection: all streams are read, and a row is read while they are written, or written while they are read again (two
    kernels, vLLM, model_executor/kernels/mhc). Backward: streams and gradients are read, gradients written."""
    moved = (2 * model.streams + 1) * model.hidden
    return MemoryOp(
        name="residual", piece=RESIDUAL, launches=(1, 2), scope=scope, served=moved, forward=moved, backward=moved + model.streams * model.hidden,
        rows=1 / cut.shard,
    )  # fmt: skip


def _added(model: WholeModel, cut: Cut, scope: str) -> MemoryOp:
    """The addition to the residual stream, which engines fuse into the next norm."""
    hidden = model.hidden
    if model.streams > 1:
        return _mixed(model, cut, scope)
    return MemoryOp(
        name="residual", piece=RESIDUAL, launches=(1, 2), scope=scope, served=0, kernels=0, forward=ADDED * hidden, backward=ADDED_BACK * hidden,
        rows=1 / cut.shard,
    )  # fmt: skip


def _attention_end(model: WholeModel, cut: Cut, width: int, gathered: int, saves: tuple[SavedTensor, ...]) -> Iterator[LayerOperator]:
    """The projection back, its sum, the residual stream."""
    a, hidden = model.attention, model.hidden
    yield matrix("attention", "out", width, hidden, cut, "inputs", name="attention out", piece=PROJECTIONS, saves=saves)
    if a.out_bias:
        yield vector("attention", "out bias", hidden)
    if a.sinks:
        yield vector("attention", "sinks", a.heads, split="tp")
    yield Sum(name="attention all-reduce", piece=TENSOR, gathered=gathered, scattered=hidden, launches=(2, 3) if cut.tp > 1 else (0, 0))
    yield _added(model, cut, "attn")


def _context_saved(model: WholeModel, cut: Cut) -> tuple[SavedTensor, ...]:
    """With context parallelism heads are exchanged behind the kernel, which keeps its own output."""
    a = model.attention
    return (SavedTensor("output before the context exchange", BF16 * a.heads * a.value_dim / cut.tp),) if cut.cp > 1 else ()


def _output_saved(model: WholeModel, cut: Cut) -> tuple[SavedTensor, ...]:
    a = model.attention
    whole, narrow = ((each * a.heads * a.value_dim + FP32 * a.heads) / cut.tp for each in (BF16, E5M6))
    return (SavedTensor("attention output", whole, linear=True, narrow=narrow), *_context_saved(model, cut))


def _norm_output(model: WholeModel, cut: Cut) -> tuple[SavedTensor, ...]:
    return (SavedTensor("norm output", module="layernorm", linear=True, kept=model.hidden / cut.shard),)


def _gqa(model: WholeModel, cut: Cut, windowed: bool) -> Iterator[LayerOperator]:
    a, hidden, t = model.attention, model.hidden, cut.tp
    rows = ((1 + a.gated) * a.heads + 2 * a.kv_heads) * a.head_dim
    heads, kv = a.heads / t, max(1.0, a.kv_heads / t)  # with more ranks than heads each head has copies
    qkv = matrix("attention", "qkv", hidden, rows, cut, name="qkv", piece=PROJECTIONS, saves=_norm_output(model, cut))
    yield replace(qkv, n=((1 + a.gated) * heads + 2 * kv) * a.head_dim)
    if a.qkv_bias:
        yield vector("attention", "qkv bias", rows, split="tp")
    if a.qk_norm:
        yield vector("attention", "q and k norm", ((a.heads + a.kv_heads) if a.qk_norm_joint else 2) * a.head_dim)
    times, launches = SCALED if a.sinks else ((2 * (PASSES + a.qk_norm),) * 2, (4, 7))  # of models with sinks, GPT-OSS alone has YaRN's scale
    forward, backward = (one * (heads + a.kv_heads / t) * a.head_dim for one in times)
    yield MemoryOp(
        name="rope and cache", piece=POSITIONS, launches=launches, scope="attn", served=2 * (heads + 2 * kv) * a.head_dim, kernels=1 + a.qk_norm,
        forward=forward, backward=backward,
    )  # fmt: skip
    yield Core(
        name="attention", piece=CORE, saves=(SavedTensor("q, k, v", BF16 * (heads + 2 * kv) * a.head_dim),), launches=(1, 3), scope="attn",
        heads=heads / cut.cp, kv_heads=kv / cut.cp, qk_dim=a.head_dim, v_dim=a.head_dim, window=a.window if windowed else 0, ranks=cut.cp,
    )  # fmt: skip
    if a.gated:
        width = heads * a.head_dim
        yield MemoryOp(
            name="attention gate", piece=POSITIONS, launches=(1, 2), scope="attn", served=2 * width, forward=ADDED * width,
            backward=ADDED * ACTIVATION_BACK * width,
        )  # fmt: skip
    yield from _attention_end(model, cut, a.heads * a.head_dim, hidden, _output_saved(model, cut))


def _mla(model: WholeModel, cut: Cut) -> Iterator[LayerOperator]:
    """Down projections are replicated over tensor parallel ranks (Megatron-LM, multi_latent_attention.py)."""
    a, hidden, t = model.attention, model.hidden, cut.tp
    heads, latent, queries = a.heads / t, a.kv_rank + a.rope_dim, a.heads * a.qk_dim
    down, saves = {"name": "q and kv down", "piece": PROJECTIONS}, _norm_output(model, cut)
    if a.q_rank:
        yield matrix("attention", "q down", hidden, a.q_rank, cut, "none", name=down["name"], piece=PROJECTIONS, saves=saves)
        yield vector("attention", "q norm", a.q_rank)
    yield matrix(
        "attention", "kv down", hidden, latent, cut, "none", name=down["name"], piece=PROJECTIONS, saves=() if a.q_rank else saves,
        joined=bool(a.q_rank),
    )  # fmt: skip
    yield vector("attention", "kv norm", a.kv_rank)
    latents = a.q_rank + a.kv_rank
    kept = (SavedTensor("down projections and norms", BF16 * (2 * latents + a.rope_dim), narrow=BF16 * (latents + a.rope_dim)),)
    yield MemoryOp(name="latent norms", piece=UP, saves=kept, launches=(1, 3), scope="attn", served=2 * (a.q_rank + latent))
    yield matrix("attention", "q up", a.q_rank or hidden, queries, cut, name="q up", piece=UP)
    if a.index_heads:
        width, rows = a.index_heads * a.index_dim, a.index_dim + a.index_heads
        yield matrix("attention", "index queries", a.q_rank, width, cut, "none", name="indexer", piece=PROJECTIONS)
        yield matrix("attention", "index key and weights", hidden, rows, cut, "none", name="indexer", piece=PROJECTIONS)
        yield vector("attention", "index norm", 2 * a.index_dim)
    yield replace(matrix("attention", "kv up", a.kv_rank, a.heads * (a.nope_dim + a.v_dim), cut, name="kv up", piece=UP), expands=True)
    moved = 2 * (PASSES + a.qk_norm) * 2 * heads * a.qk_dim
    yield MemoryOp(
        name="rope and cache", piece=UP, launches=(3, 5), scope="attn", served=2 * (heads * a.rope_dim + latent), forward=moved, backward=moved
    )
    yield MemoryOp(name="splits", piece=POSITIONS, launches=(5, 8), scope="attn", served=0, kernels=0, steps=(0, 0))
    yield Core(
        name="attention", piece=CORE, saves=(SavedTensor("q, k, v", BF16 * (2 * queries + a.heads * a.v_dim) / t, "mla_up_proj"),), launches=(1, 3),
        scope="attn", heads=heads / cut.cp, kv_heads=heads / cut.cp, qk_dim=a.qk_dim, v_dim=a.v_dim, kv_rank=a.kv_rank, rope_dim=a.rope_dim,
        ranks=cut.cp, index_heads=a.index_heads, index_dim=a.index_dim, index_top=a.index_top,
    )  # fmt: skip
    yield from _attention_end(model, cut, a.heads * a.v_dim, a.q_rank + latent, _output_saved(model, cut))


def _csa(model: WholeModel, cut: Cut, letter: str) -> Iterator[LayerOperator]:
    """One vector of a token is key and value of all heads; a window of them, and what compressors make of the tokens behind it.

    A compressor has values and gates; where entries overlap (letter `c`), two series of them, and the indexer's beside its own. What the hidden
    vector is multiplied with is whole on every rank, as in MLA; positions are turned back behind the core (transformers, models/deepseek_v4).
    """
    a, hidden, t = model.attention, model.hidden, cut.tp
    sparse, rate = letter == "c", {"c": a.sparse_rate, "h": a.heavy_rate}.get(letter, 0)
    heads, queries, down = a.heads / t, a.heads * a.head_dim, "q and kv down"
    yield matrix("attention", "q down", hidden, a.q_rank, cut, "none", name=down, piece=PROJECTIONS, saves=_norm_output(model, cut))
    yield vector("attention", "q norm", a.q_rank)
    yield matrix("attention", "kv down", hidden, a.head_dim, cut, "none", name=down, piece=PROJECTIONS, joined=True)
    yield vector("attention", "kv norm", a.head_dim)
    pooled = 0
    for width in (a.head_dim, *(a.index_dim,) * sparse) if rate else ():
        series = 2 * (1 + sparse) * width
        yield matrix("attention", "compressor", hidden, series, cut, "none", name="compressor", piece=PROJECTIONS, joined=pooled > 0)
        yield vector("attention", "compressor norm and places", rate * series // 2 + width)
        pooled += series
    normed, latents = a.q_rank + a.head_dim, a.q_rank + a.head_dim + pooled
    kept = (SavedTensor("down projections and norms", BF16 * (normed + latents)),)
    yield MemoryOp(
        name="latent norms", piece=UP, saves=kept, launches=(1, 3), scope="attn", served=READ * latents, forward=READ * latents,
        backward=READ_BACK * latents,
    )  # fmt: skip
    yield matrix("attention", "q up", a.q_rank, queries, cut, name="q up", piece=UP)
    if sparse:
        yield matrix("attention", "index queries", a.q_rank, a.index_heads * a.index_dim, cut, "none", name="indexer", piece=PROJECTIONS)
        yield matrix("attention", "index weights", hidden, a.index_heads, cut, "none", name="indexer", piece=PROJECTIONS)
    moved = 2 * heads * a.head_dim
    yield MemoryOp(
        name="rope and cache", piece=UP, launches=(3, 5), scope="attn", served=moved, forward=PASSES * moved, backward=PASSES * moved
    )
    yield Core(
        name="attention", piece=CORE, saves=(SavedTensor("q, k, v", BF16 * (heads + 1) * a.head_dim),), launches=(1, 3), scope="attn",
        heads=heads / cut.cp, kv_heads=1, qk_dim=a.head_dim, v_dim=a.head_dim, window=a.window, ranks=cut.cp, kv_rank=a.head_dim - a.rope_dim,
        rope_dim=a.rope_dim, index_heads=a.index_heads * sparse, index_dim=a.index_dim * sparse, index_top=a.index_top * sparse, shared=True,
        pool=rate,
    )  # fmt: skip
    yield MemoryOp(name="rope back", piece=POSITIONS, launches=(1, 2), scope="attn", served=moved, forward=moved, backward=moved)
    yield matrix(
        "attention", "out down", queries // a.out_groups, a.out_groups * a.out_rank, cut, name="attention out", piece=PROJECTIONS,
        saves=_output_saved(model, cut),
    )  # fmt: skip
    yield from _attention_end(model, cut, a.out_groups * a.out_rank, a.q_rank + a.head_dim, ())


class _LinearForm(NamedTuple):
    """What a kind of linear attention has of each value head: `rates` from the hidden vector (decay, strength), `vectors` of so many elements.

    `ranks`: decay of every channel and gate come from vectors as wide as a head. `whole_norm`: the norm has a vector for all heads.
    """

    rates: int
    vectors: int
    products: int
    ranks: bool = False
    whole_norm: bool = False
    scope: str = "attn"


LINEAR_FORMS = {
    "gdn": _LinearForm(2, 2, 3), "kda": _LinearForm(1, 1, 3, ranks=True), "lightning": _LinearForm(0, 0, 2, whole_norm=True),
    "mamba2": _LinearForm(1, 3, 2, whole_norm=True, scope="mamba"),
}  # fmt: skip
"""Transformers, models/qwen3_next, kimi_linear (one decay for each channel beside one for each head), minimax, nemotron_h."""


def _linear(model: WholeModel, cut: Cut) -> Iterator[LayerOperator]:
    """Queries, keys, values and gate in one matrix; strength and decay in another.

    Saved are inputs of the projections, of the convolution and of the gated norm; states of chunks are made again in the backward pass.
    """
    a, hidden, t = model.linear, model.hidden, cut.tp
    assert a is not None
    form, values, mixed = LINEAR_FORMS[a.kind], a.value_heads * a.value_dim, a.mixed
    rates, scope, gate = form.rates * a.value_heads, form.scope, 0 if form.ranks else values
    first = {"name": "qkv", "piece": PROJECTIONS, "saves": _norm_output(model, cut), "scope": scope}
    yield matrix("attention", "linear in", hidden, mixed + gate, cut, **first)  # type: ignore[arg-type]
    if rates:
        yield matrix("attention", "linear rates", hidden, rates, cut, name="decay", piece=PROJECTIONS, scope=scope)
    if form.ranks:
        yield matrix("attention", "linear ranks", hidden, 2 * a.value_dim, cut, "none", name="decay", piece=PROJECTIONS, scope=scope)
        both = a.value_heads * (a.key_dim + a.value_dim)
        yield matrix("attention", "linear rank up", a.value_dim, both, cut, name="decay", piece=PROJECTIONS, scope=scope)
    if a.convolution:
        yield vector("attention", "convolution", mixed * (a.convolution + a.convolution_bias), split="tp")
    kept = (SavedTensor("linear q, k, v before and behind the convolution", BF16 * 2 * mixed / t),
            SavedTensor("gate, strength and decay", (BF16 * values + FP32 * 2 * a.value_heads) / t))  # fmt: skip
    yield MemoryOp(
        name="convolution", piece=CONVOLUTION, saves=kept, launches=(3, 5), scope=scope, served=2 * mixed / t, forward=2 * mixed / t,
        backward=2 * ACTIVATION_BACK * mixed / t,
    )  # fmt: skip
    if elements := a.value_heads * (form.vectors + form.ranks * a.key_dim):
        yield vector("attention", "decay", elements, split="tp")
    yield DeltaNetState(
        name="linear attention", piece=CORE, launches=(1, 3), scope=scope, key_heads=max(1.0, a.key_heads / t), value_heads=a.value_heads / t,
        key_dim=a.key_dim, value_dim=a.value_dim, state=a.state / t, tail=mixed * max(0, a.convolution - 1) / t, products=form.products,
        scan=a.kind == "mamba2",
    )  # fmt: skip
    if a.normed:
        yield vector("attention", "linear norm", values if form.whole_norm else a.value_dim, split="tp" if form.whole_norm else "none")
    yield MemoryOp(
        name="attention gate", piece=CONVOLUTION, scope="" if scope == "attn" else scope, served=2 * values / t, forward=ADDED * values / t,
        backward=ADDED * ACTIVATION_BACK * values / t,
    )  # fmt: skip
    out = (SavedTensor("linear output before and behind its norm", BF16 * values / t, linear=True, kept=values / t),)
    yield from _attention_end(model, cut, values, hidden, out)


def _ffn(model: WholeModel, cut: Cut, part: Part, inner: int, matrices: int, saves: tuple[SavedTensor, ...] = ()) -> Iterator[LayerOperator]:
    """Two or three matrices with an activation between them: a dense FFN, or shared experts."""
    hidden, dense = model.hidden, part == "dense FFN"
    first, scope, short = inner * (matrices - 1), "mlp" if dense else "", "" if dense else "shared "
    module = "mlp" if dense else "shared_experts"
    yield matrix(part, f"{short}FC1", hidden, first, cut, name=part, piece=part, saves=saves, scope=scope)
    moved = matrices * inner / cut.tp
    before = (SavedTensor(f"{short}FC1 output", BF16 * first / cut.tp, module, narrow=0 if dense else first / cut.tp),)
    yield MemoryOp(
        name=part, piece=part, saves=before, launches=(2, 3) if dense else (1, 2), scope=scope, served=moved, forward=moved,
        backward=ACTIVATION_BACK * moved,
    )  # fmt: skip
    behind = (SavedTensor(f"{short}activation", module=module, linear=True, kept=inner / cut.tp),)
    yield matrix(part, f"{short}FC2", inner, hidden, cut, "inputs", name=part, piece=part, saves=behind, scope=scope)
    if dense and model.dense_bias:
        yield vector(part, "biases", first + hidden)
    parallel = (2, 3) if cut.tp > 1 else (0, 0)
    yield Sum(name="FFN all-reduce", piece=part, gathered=hidden, scattered=hidden, launches=parallel)


def _norm_of_ffn(model: WholeModel, cut: Cut) -> tuple[SavedTensor, ...]:
    return (SavedTensor("FFN norm output", BF16 * model.hidden / cut.shard, "layernorm", linear=True),)  # the router reads it in BF16


def _dense(model: WholeModel, cut: Cut) -> Iterator[LayerOperator]:
    yield from _ffn(model, cut, "dense FFN", model.dense_hidden, model.dense_matrices, _norm_of_ffn(model, cut))
    yield _added(model, cut, "mlp")


def _experts(model: WholeModel, cut: Cut) -> Iterator[LayerOperator]:
    layer, hidden = model.layer, model.hidden
    assert layer is not None
    n, k, inner, row = layer.n_experts, layer.topk, layer.expert_hidden, layer.hidden
    up = layer.n_matrices - 1
    kept = (*_norm_of_ffn(model, cut), SavedTensor("router", ROUTER_BYTES * n / cut.shard, "moe"))
    router = matrix("router", "router", hidden, n, cut, "none", name="router", piece=ROUTER, saves=kept, scope="moe_router")
    yield replace(router, exact=model.router_fp32)
    yield MemoryOp(name="router", piece=ROUTER, launches=(16, 10), scope="moe_router", served=2 * n, kernels=3, steps=(16, 10), rows=1 / cut.shard)
    if model.router_bias:
        yield vector("router", "router bias", n)
    latent = {"name": "shared experts", "piece": SHARED, "scope": ""}
    if model.latent_experts:
        yield matrix("shared experts", "latent down", hidden, row, cut, "none", **latent)  # type: ignore[arg-type]
        yield matrix("shared experts", "latent up", row, hidden, cut, "none", **latent)  # type: ignore[arg-type]
    yield RowExchange(name="dispatch", piece=EXCHANGE, launches=(6, 9), scope="moe", width=row)
    rows = k * cut.etp / cut.shard
    routed = {"part": "routed experts", "count": n, "used": k, "split": "experts", "rows": rows, "name": "experts", "piece": EXPERTS}
    before = (SavedTensor("permuted rows", module="moe", linear=True, kept=row, routed=True),)
    yield Weight(weight="expert FC1", inputs=row, outputs=inner * up, n=inner * up / cut.etp, k=row, saves=before, launches=(1, 2), **routed)  # type: ignore[arg-type]
    between = (SavedTensor("expert FC1 output", BF16 * up * inner / cut.etp, "moe", routed=True, narrow=up * inner / cut.etp),)
    width, clamped = inner / cut.etp, CLAMPED if model.expert_bias else (0, 0)
    yield MemoryOp(
        name="experts", piece=ACTIVATION, saves=between, launches=(1, 1), scope="moe", served=(up + 1) * width,
        forward=(up + 1 + clamped[0]) * width, backward=(2 * up + 1 + clamped[1]) * width, rows=rows,
    )  # fmt: skip
    behind = (SavedTensor("expert activation", module="moe_act", linear=True, kept=width, routed=True),
              SavedTensor("expert FC2 output", BF16 * row, "moe", routed=True))  # fmt: skip
    yield Weight(weight="expert FC2", inputs=inner, outputs=row, n=row, k=width, saves=behind, launches=(1, 2), **routed)  # type: ignore[arg-type]
    if model.expert_bias:
        yield vector("routed experts", "expert biases", inner * up + row, n, k, "experts")
        yield MemoryOp(
            name="expert biases", piece=EXPERTS, launches=(4, 6), scope="moe", served=0, kernels=0, steps=(4, 6), forward=BIASED[0] * hidden,
            backward=BIASED[1] * hidden, rows=rows,
        )  # fmt: skip
    if model.shared_hidden:
        yield from _ffn(model, cut, "shared experts", model.shared_hidden, layer.n_matrices)
        if model.shared_gate:
            yield matrix("shared experts", "shared gate", hidden, 1, cut, "none", name="shared experts", piece=SHARED, scope="")
        yield MemoryOp(name="shared experts", piece=SHARED, launches=(1, 2), served=0, kernels=0, steps=(0, 0))
    yield RowExchange(name="combine", piece=EXCHANGE, launches=(7, 10), scope="moe", width=row)
    yield _added(model, cut, "moe")
