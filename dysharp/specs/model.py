"""`Model`: the shape of one mixture-of-experts layer and the number of such layers."""

from dysharp.base import frozen, show
from dysharp.specs.fields import DispatchFormat, Experts, GemmDtype, Name, Small, Text, Tokens, Width, check_fields, raise_if


@frozen
class Model:
    """One MoE layer. Widths count elements. Raises `ConfigError` for an invalid value."""

    name: Name
    hidden: Width
    """Elements of a token row."""
    expert_hidden: Width
    """Inner width of one expert."""
    n_experts: Experts
    """Routed experts per layer. Shared experts do not count: they move no data."""
    topk: Experts
    """Distinct experts per token."""
    tokens_per_gpu: Tokens
    """Default tokens per GPU: one sequence for the models of papers, 1024 for public models."""
    n_matrices: Small
    """Weight matrices of an expert: 2 = plain, 3 = gated."""
    element_bytes: Small
    """Bytes per element of a token row (2 = BF16): in Combine, and in Dispatch if `dispatch_format` is "rows"."""
    gemm_dtype: GemmDtype
    """Type of the expert GEMMs: "fp8" or "bf16"."""
    n_group: Experts = 1
    """Expert groups of group-limited gating (1 = off)."""
    topk_group: Experts = 1
    """Groups from which a token chooses its experts."""
    n_layers: Small = 1
    """MoE layers of the model, without its dense layers."""
    routing: Text = "uniform"
    """Default routing string for `workload`, such as "uniform", "lognormal:0.65" or "trace:NAME"."""
    dispatch_format: DispatchFormat = "rows"
    """Rows of Dispatch: "rows" = `element_bytes` per element, "fp8" = a byte per element and an FP32 scale per 128."""
    source: Text = ""
    """Source of the numbers."""
    checkpoint: Text = ""
    """Format of the published weights: a simulated layer has weights in `gemm_dtype`, and says so where these are narrower."""

    def __post_init__(self) -> None:
        where = f"model {show(self.name)}"
        check_fields(self, where)
        raise_if(_conflicts(self), where)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token row on the wire."""
        return self.hidden * self.element_bytes

    @property
    def expert_weights(self) -> int:
        """Weights of one expert."""
        return self.n_matrices * self.hidden * self.expert_hidden

    @property
    def gated(self) -> bool:
        """Whether an expert has three matrices: gate, up and down."""
        return self.n_matrices == 3


def _conflicts(m: Model) -> list[str]:
    """Broken rules between fields. Each field alone is valid already."""
    faults = []
    if m.topk > m.n_experts:
        faults.append(f"topk: found {m.topk}, expected at most n_experts = {m.n_experts}")
    if m.n_matrices not in (2, 3):
        faults.append(f"n_matrices: found {m.n_matrices}, expected 2 (plain) or 3 (gated)")
    if m.element_bytes not in (1, 2, 4):
        faults.append(f"element_bytes: found {m.element_bytes}, expected 1, 2 or 4")
    if not m.routing:
        faults.append('routing: found "", expected a routing such as "uniform"')
    return faults + _group_conflicts(m)


def _group_conflicts(m: Model) -> list[str]:
    if m.topk_group > m.n_group:
        return [f"topk_group: found {m.topk_group}, expected at most n_group = {m.n_group}"]
    if m.n_experts % m.n_group:
        return [f"n_group: found {m.n_group}, expected a divisor of n_experts = {m.n_experts}"]
    eligible = m.topk_group * (m.n_experts // m.n_group)
    if m.topk_group < m.n_group and m.topk > eligible:
        return [f"topk: found {m.topk}, expected at most {eligible}, the experts of {m.topk_group} groups"]
    return []
