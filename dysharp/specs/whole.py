"""`WholeModel`: a model from its embedding to its head, around the MoE layer that `Model` describes.

A packaged file of a model holds both: the keys of the layer stand at its top, everything else in the table `[whole]`.
A dense model has no layer. Its file lies in `data/dense`.
"""

from collections import Counter
from typing import Annotated

from pydantic import Field

from dysharp.base import Tally, frozen, show
from dysharp.specs.fields import Checkpoint, Name, Small, SmallOrNone, Text, Width, check_fields, one_of, raise_if
from dysharp.specs.model import Model

Flag = Annotated[bool, Field(strict=True)]
WidthOrNone = Annotated[int, Field(strict=True, ge=0, le=1 << 20)]
Vocabulary = Annotated[int, Field(strict=True, ge=1, le=1 << 24)]
AttentionKind = Annotated[str, Field(strict=True), one_of("gqa", "mla", "csa")]
LinearKind = Annotated[str, Field(strict=True), one_of("gdn", "kda", "lightning", "mamba2")]
WORD = "([*wchM]{1,2}[E-]?|[E-])"
Stack = Annotated[str, Field(strict=True, pattern=f"^({WORD}( {WORD})*)?$", max_length=1 << 14)]


@frozen
class Attention:
    """Heads of one attention layer. Widths count elements of one head; ranks count elements of a token. Raises `ConfigError`."""

    kind: AttentionKind
    """"gqa" = query heads in groups that share keys and values (MHA: `kv_heads` = `heads`), "mla" = keys and values from one low-rank vector,
    "csa" = one vector is key and value of all heads, behind the window compressed (DeepSeek-V4, transformers, models/deepseek_v4)."""
    heads: Small
    kv_heads: SmallOrNone = 0
    """Heads of keys and values (gqa)."""
    head_dim: WidthOrNone = 0
    """Width of queries, keys and values (gqa, csa)."""
    q_rank: WidthOrNone = 0
    """Rank of the queries (mla, csa); 0 = they are projected from the hidden vector."""
    kv_rank: WidthOrNone = 0
    """Rank of keys and values (mla)."""
    nope_dim: WidthOrNone = 0
    """Part of queries and keys without position (mla)."""
    rope_dim: WidthOrNone = 0
    """Part of queries and keys with position (mla, csa)."""
    v_dim: WidthOrNone = 0
    """Width of values (mla)."""
    index_heads: SmallOrNone = 0
    """Heads of the indexer that chooses the tokens to attend to (mla, csa; DeepSeek sparse attention, arXiv 2512.02556); 0 = all tokens."""
    index_dim: WidthOrNone = 0
    """Width of an indexer's head; one key for all."""
    index_top: WidthOrNone = 0
    """Most tokens, or compressed entries, that a query attends to."""
    sparse_rate: SmallOrNone = 0
    """Tokens of a compressed entry in layers `c`, where an indexer chooses entries (csa)."""
    heavy_rate: SmallOrNone = 0
    """The same in layers `h`, where a query attends to all of them (csa)."""
    out_groups: SmallOrNone = 0
    """Groups of heads that are projected apart to `out_rank` elements each before the projection back (csa)."""
    out_rank: WidthOrNone = 0
    qk_norm: Flag = False
    """A norm of every query and key head, one vector each per layer (gqa)."""
    qk_norm_joint: Flag = False
    """The norm is of all heads together, so its vectors are as wide as all queries and all keys."""
    qkv_bias: Flag = False
    out_bias: Flag = False
    sinks: Flag = False
    """A learned sink per head."""
    window: WidthOrNone = 0
    """Tokens that a query of a windowed layer sees; 0 = no layer has a window."""
    window_every: Small = 1
    """One layer of so many has the window: 2 = every second one."""
    gated: Flag = False
    """A gate of every element of the output, projected with the queries (gqa)."""

    def __post_init__(self) -> None:
        check_fields(self, "attention")
        raise_if(_attention_conflicts(self), "attention")

    @property
    def mla(self) -> bool:
        """Whether keys and values of all heads come from one vector."""
        return self.kind != "gqa"

    @property
    def compressed(self) -> bool:
        """Whether that vector is key and value itself."""
        return self.kind == "csa"

    @property
    def qk_dim(self) -> int:
        """Width of one query or key head."""
        return self.head_dim or self.nope_dim + self.rope_dim

    @property
    def value_dim(self) -> int:
        """Width of one value head."""
        return self.head_dim or self.v_dim


SPARSE = ("index_heads", "index_dim", "index_top")
OWN = {
    "gqa": ("kv_heads", "head_dim", "gated"), "mla": ("kv_rank", "nope_dim", "rope_dim", "v_dim", "q_rank", *SPARSE),
    "csa": ("head_dim", "rope_dim", "q_rank", *SPARSE, "window", "sparse_rate", "heavy_rate", "out_groups", "out_rank"),
}  # fmt: skip
"""Keys of a kind of attention, which the others do not have; of them `MAY` may be missing."""
MAY = {"gqa": ("gated",), "mla": ("q_rank", *SPARSE), "csa": ()}


def _attention_conflicts(a: Attention) -> list[str]:
    own = OWN[a.kind]
    foreign = [key for key in dict.fromkeys(key for keys in OWN.values() for key in keys) if key not in (*own, "window")]
    faults = [f"{key}: missing, expected it for kind {show(a.kind)}" for key in own if key not in MAY[a.kind] and not getattr(a, key)]
    faults += [f"{key}: found {getattr(a, key)}, expected no such key for kind {show(a.kind)}" for key in foreign if getattr(a, key)]
    if len({bool(getattr(a, key)) for key in SPARSE}) > 1 or (a.index_heads and not a.q_rank):
        faults.append(f"index_heads: found {a.index_heads}, expected index_heads, index_dim, index_top and q_rank together")
    if not faults and (shared := "out_groups" if a.compressed else "" if a.mla else "kv_heads") and a.heads % getattr(a, shared):
        faults.append(f"{shared}: found {getattr(a, shared)}, expected a divisor of heads = {a.heads}")
    return faults


@frozen
class LinearAttention:
    """A state of `value_heads` matrices [key_dim, value_dim] in place of a cache. Raises `ConfigError`.

    Mamba-2 (arXiv 2405.21060) has the same widths under other names: groups of C and B are heads of queries and keys, x are values, `key_dim` is the
    size of the state, z the output's gate.
    """

    key_heads: Small
    """Heads of queries, and of keys."""
    value_heads: Small
    """Heads of values, of the output's gate, of the decay and of the update's strength."""
    key_dim: Width
    value_dim: Width
    convolution: SmallOrNone = 4
    """Tokens that the causal convolution of queries, keys and values sees; 0 = there is none."""
    kind: LinearKind = "gdn"
    """"gdn" = gated delta net (arXiv 2412.06464), "kda" = with a decay of every channel (2510.26692), "lightning" = fixed decays (2501.08313)."""
    normed: Flag = True
    """A norm of the output."""
    convolution_bias: Flag = False

    def __post_init__(self) -> None:
        check_fields(self, "linear")

    @property
    def mixed(self) -> int:
        """Elements of a token's queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state(self) -> int:
        """Elements of the state of a request in one layer."""
        return self.value_heads * self.key_dim * self.value_dim


@frozen
class WholeModel:
    """A model from embedding to head. Widths count elements. Dense layers come first. Raises `ConfigError` for an invalid value."""

    name: Name
    source: Text
    hidden: Width
    """Elements of a token row."""
    attention: Attention
    vocab: Vocabulary
    """Rows of the embedding and of the head, without padding."""
    layer: Model | None = None
    """The MoE layer; None: a dense model."""
    stack: Stack = ""
    """A word of letters for each layer where layers stand in another order: `*` attention, `w` attention with the window, `c` and `h` with compressed
    entries beside it (csa), `M` the table linear (two letters: side by side, behind one norm), then `E` experts or `-` a dense FFN, or neither:
    "M E *-". "": by the counts of this table."""
    dense_layers: SmallOrNone = 0
    """Leading layers with a dense FFN; beside a stack all of them, or 0."""
    dense_hidden: WidthOrNone = 0
    """Inner width of a dense FFN."""
    dense_matrices: Small = 3
    """Weight matrices of a dense FFN: 2 = plain, 3 = gated."""
    shared_hidden: WidthOrNone = 0
    """Inner width of all shared experts of a layer together."""
    shared_gate: Flag = False
    """A gate of the shared experts: one weight vector per layer."""
    tied: Flag = False
    """One matrix is embedding and head."""
    norms_per_layer: Small = 2
    """2 = before attention and FFN, 4 = also behind them (sandwich), 1 = one before both, which stand side by side."""
    norm_vectors: Small = 1
    """Vectors of a norm: 1 = RMSNorm, 2 = LayerNorm (scale and bias)."""
    streams: Small = 1
    """Vectors of the residual stream, which are mixed before and behind attention and FFN (hyper-connections, arXiv 2409.19606; mHC, 2512.24880)."""
    router_bias: Flag = False
    """A learned bias of the router, one per expert. The bias of balancing without a loss is a buffer and does not count."""
    router_fp32: Flag = False
    """Engines hold the router in FP32 and multiply it with FP32 rows."""
    expert_bias: Flag = False
    """A learned bias of every matrix of a routed expert."""
    latent_experts: Flag = False
    """Rows go to experts narrower than `hidden`: a matrix before dispatch, one behind combine; their width is that of the MoE layer."""
    head_bias: Flag = False
    dense_bias: Flag = False
    """A learned bias of every matrix of a dense FFN."""
    positions: WidthOrNone = 0
    """Learned position vectors; 0 = positions are rotations (RoPE)."""
    context: Annotated[int, Field(strict=True, ge=0, le=1 << 24)] = 0
    """Most tokens of a request by the model's config; 0 = it does not say."""
    linear: LinearAttention | None = None
    """Attention of all layers but the last of every `full_every`."""
    full_every: Small = 1
    mtp: SmallOrNone = 0
    """Layers that predict further tokens (MTP), each like the last layer."""
    checkpoint: Checkpoint = ""
    """Precision of the weights that are published, a name of `model.formats.PRECISIONS`; "": that of the experts' GEMMs."""
    repository: Text = ""
    """The published checkpoint on Hugging Face, or the folder of a config.json; "": not known."""

    def __post_init__(self) -> None:
        where = f"model {show(self.name)}"
        check_fields(self, where)
        raise_if(_conflicts(self), where)

    @property
    def between(self) -> int:
        """Elements of a token that go from one layer to the next."""
        return self.streams * self.hidden

    @property
    def moe_layers(self) -> int:
        """Layers with experts, without MTP."""
        return self.layer.n_layers if self.layer else 0

    @property
    def n_layers(self) -> int:
        """Layers without MTP."""
        return len(self.stack.split()) or self.dense_layers + self.moe_layers

    def kind(self, layer: int) -> str:
        """The word of layer number `layer` (`stack`); layers count from 0, those of MTP follow the last and have attention and its FFN."""
        words = self.stack.split()
        if layer < len(words):
            return words[layer]
        ffn = "E" if self.layer is not None and layer >= self.dense_layers else "-"
        if not words and self.linear is not None and layer < self.n_layers and (layer + 1) % self.full_every:
            return f"M{ffn}"
        windowed = self.attention.compressed or (not words and self.attention.window and layer % self.attention.window_every == 0)
        return f"{'w' if windowed else '*'}{ffn}"

    @property
    def kinds(self) -> Tally:
        """Every word, in the order of first layers, with the number of its layers; without MTP."""
        return Counter(map(self.kind, range(self.n_layers)))

    def is_moe(self, layer: int) -> bool:
        """Whether layer number `layer` has experts."""
        return "E" in self.kind(layer)

    def windowed(self, layer: int) -> bool:
        """Whether attention of layer number `layer` has the window."""
        return "w" in self.kind(layer)

    def is_linear(self, layer: int) -> bool:
        """Whether layer number `layer` has linear attention or Mamba-2."""
        return "M" in self.kind(layer)

    @property
    def last_moe(self) -> int:
        """Number of the last layer with experts, or of the last layer."""
        return max((n for n in range(self.n_layers) if self.stack and self.is_moe(n)), default=self.n_layers - 1)


def _conflicts(m: WholeModel) -> list[str]:
    faults, letters = [], set(m.stack)
    if m.layer is None and not m.dense_layers and not m.stack:
        faults.append("dense_layers: found 0, expected at least 1 in a model without MoE layers")
    if (m.dense_layers or "-" in letters) and not m.dense_hidden:
        faults.append(f"dense_hidden: missing, expected the inner width of {m.dense_layers or m.stack.count('-')} dense layers")
    if m.stack:
        leading = [*("-" in word for word in m.stack.split()), False].index(False)
        beside = {"full_every": m.full_every - 1, "attention.window_every": m.attention.window_every - 1}
        faults += [f"dense_layers: found {m.dense_layers}, expected {leading} as in stack, or none"] * (m.dense_layers not in (0, leading))
        faults += [f"{key}: found it, expected no such key beside stack" for key, n in beside.items() if n]
        if m.moe_layers != m.stack.count("E"):
            faults.append(f"stack: found {m.stack.count('E')} layers with experts, expected n_layers = {m.moe_layers}")
        mixers = {"*": False} if m.attention.compressed else {"w": bool(m.attention.window), "c": False, "h": False}
        given = {"M": m.linear is not None, **mixers}
        wrong = {key: "in" if has else "not in" for key, has in given.items() if has != (key in letters)}
        faults += [f"stack: found {show(m.stack)}, expected {key} {where} it" for key, where in wrong.items()]
    elif m.attention.compressed:
        faults.append("stack: missing, expected the word of every layer for kind csa")
    if m.layer is None:
        experts = ("shared_hidden", "shared_gate", "router_bias", "router_fp32", "expert_bias")
        faults += [f"{key}: found {getattr(m, key)}, expected no such key in a model without MoE layers" for key in experts if getattr(m, key)]
    if not m.stack and (m.linear is None) != (m.full_every == 1):
        faults.append(f"full_every: found {m.full_every}, expected {'at least 2 beside' if m.linear else '1 without'} the table linear")
    if m.layer is not None and (m.layer.hidden != m.hidden) != m.latent_experts:
        faults.append(f"hidden: found {m.hidden}, expected {'another than ' * m.latent_experts}{m.layer.hidden} as in the MoE layer")
    return faults
