"""`Cluster`: GPUs, links, switches and the sizes of in-network tables of one NVLink domain, or of several equal ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dysharp.errors import ConfigError
from dysharp.specs.fields import (
    Amount,
    AmountOrZero,
    Constants,
    Entries,
    EntriesOrInfinite,
    Family,
    Name,
    Small,
    SmallOrNone,
    Text,
    check_fields,
    raise_if,
    show,
)
from dysharp.specs.fitted import conflicts_of, fitted_values
from dysharp.specs.gpu import Gpu, list_gpus, load_gpu
from dysharp.specs.scale_out import ScaleOut

MAX_GPUS = 1024
SCOPE = "this cluster is one NVLink domain; a cluster with a [scale_out] table joins several, such as hw-dgx-h100-x4"
"""Where more GPUs are, in errors."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """NVLink domains: one, or several with `scale_out`.

    Times are in picoseconds, rates per microsecond. Raises `ConfigError` for an invalid value.
    """

    name: Name
    family: Family
    """"paper": the assumptions of a paper, without software costs that the paper does not name.
    "hw": a machine that one can buy, with fitted constants."""
    n_gpus: Small
    n_switches: SmallOrNone
    """Switch chips (planes). Every GPU has links to every switch chip. 0: no switch, every pair of GPUs of a domain has a link."""
    links_per_gpu: Small
    """Links per GPU. Every link ends at one switch port, or at one other GPU."""
    link_bytes_per_us: Amount
    """Rate of all links of one GPU together, in one direction (450 GB/s = 450_000)."""
    link_latency_ps: AmountOrZero
    """Latency of one hop: from GPU to switch, or from switch to GPU."""
    flit_bytes: Small
    n_vcs: Small
    """Virtual channels per group. A port has two groups: requests and responses."""
    vc_flits: EntriesOrInfinite
    """Depth of one virtual channel at one input port. 0 = infinite."""
    internal_speedup: Small
    """Rate of the switch crossbar divided by the link rate."""
    n_sms: Small
    fp8_flops_per_us: Amount
    bf16_flops_per_us: Amount
    hbm_bytes_per_us: Amount
    hbm_bytes: Amount
    reduction_buffer_bytes: AmountOrZero
    """Size of the reduction table of one switch port."""
    multimemq_entries: Entries
    al_tlb_entries: Entries
    ts_entries: Entries
    or_entries: Entries
    tile_rows: Small
    """Rows of a tracked tile (tsize)."""
    source: Text = ""
    gpu: Text = ""
    """The packaged GPU (`specs.gpu`) whose datasheet and fitted constants apply. "" in paper clusters."""
    max_gpus: EntriesOrInfinite = 0
    """Largest `n_gpus` of this machine. 0 = `n_gpus` itself."""
    constants: Constants = ()
    """Fitted constants of this machine, sorted by name. They replace the packaged constants (`specs.fitted`).
    `dysharp calibrate` writes them."""
    scale_out: ScaleOut | None = None
    """The network between NVLink domains. None: the cluster is one domain."""

    def __post_init__(self) -> None:
        where = f"cluster {show(self.name)}"
        check_fields(self, where)
        raise_if(_conflicts(self), where)

    @property
    def domain_gpus(self) -> int:
        """GPUs of one NVLink domain."""
        return self.n_gpus if self.scale_out is None else min(self.n_gpus, self.scale_out.domain_gpus)

    @property
    def nvlink_gpus(self) -> int:
        """GPUs that a switch joins: those of a domain, or 1 without a switch."""
        return self.domain_gpus if self.n_switches else 1

    @property
    def domains(self) -> int:
        """NVLink domains in use; without a switch, nodes whose GPUs have a link for every pair."""
        return self.n_gpus // self.domain_gpus

    @property
    def pair_bytes_per_us(self) -> int:
        """Payload rate of the link between two GPUs in one direction, in bytes per microsecond, in a fabric without a switch.

        On hw clusters the part `mori.link_part` of the datasheet's rate.
        """
        part = self.fitted["mori.link_part"] if self.family == "hw" else 1.0
        return max(1, round(self.link_bytes_per_us / self.links_per_gpu * part))

    @property
    def software_costs(self) -> bool:
        """Whether systems run in their real form (launches, barriers, polls) unless the option `form` is set."""
        return self.family == "hw"

    def peak_flops_per_us(self, dtype: str) -> int:
        """Dense peak of one GPU for GEMMs in `dtype` ("fp8" or "bf16"). Raises `ConfigError` for another `dtype`."""
        if dtype == "fp8":
            return self.fp8_flops_per_us
        if dtype == "bf16":
            return self.bf16_flops_per_us
        raise ConfigError(f'cluster "{self.name}": no peak for dtype {show(dtype)}, expected "fp8" or "bf16"')

    @property
    def fitted(self) -> dict[str, float]:
        """The fitted constants of this machine by name."""
        return fitted_values(self.constants)

    @property
    def shared_memory_rate(self) -> int:
        """Memory rate that GEMMs and transfers of an hw GPU share, in bytes per microsecond.

        0 on a paper cluster: there every SM has a fixed share of the memory rate.
        """
        return round(self.hbm_bytes_per_us * self.fitted["hbm.fraction"]) if self.gpu else 0

    @property
    def own_gpu(self) -> Gpu:
        """The packaged GPU with the SMs, rates and memory of this cluster. The FP4 rate scales as the FP8 rate.

        Raises `ConfigError` for a cluster without `gpu`.
        """
        named = load_gpu(self.gpu)
        fp8 = self.fp8_flops_per_us / 1e6
        return replace(
            named,
            n_sms=self.n_sms,
            bf16_TFLOPS=self.bf16_flops_per_us / 1e6,
            fp8_TFLOPS=fp8,
            fp4_TFLOPS=named.fp4_TFLOPS * (fp8 / named.fp8_TFLOPS),
            hbm_GBps=self.hbm_bytes_per_us / 1000,
            hbm_GB=self.hbm_bytes / 1e9,
            link_GBps=self.link_bytes_per_us / 1000,
        )

    def with_gpus(self, n: int) -> Cluster:
        """The cluster with `n` GPUs in use, 1 to `max_gpus`. Links, switches and tables do not change.

        Raises `ConfigError` for another `n`.
        """
        limit = self.max_gpus or self.n_gpus
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= limit:
            beyond = f": {SCOPE}" if isinstance(n, int) and n > limit else ""
            raise ConfigError(f'cluster "{self.name}": found {show(n)} GPUs, expected 1 to {limit}{beyond}')
        return replace(self, n_gpus=n, max_gpus=limit)  # a conflict with the domains is an error of the Cluster


def _conflicts(c: Cluster) -> list[str]:
    """Broken rules between fields. Each field alone is valid already."""
    faults = []
    limit = c.max_gpus or MAX_GPUS
    if limit > MAX_GPUS:
        faults.append(f"max_gpus: found {c.max_gpus}, expected at most {MAX_GPUS}")
    if c.n_gpus > limit:
        faults.append(f"n_gpus: found {c.n_gpus}, expected at most {limit}")
    if c.links_per_gpu < c.n_switches:
        faults.append(f"links_per_gpu: found {c.links_per_gpu}, expected at least n_switches = {c.n_switches}")
    most = min(limit, c.scale_out.domain_gpus) if c.scale_out is not None else limit
    if not c.n_switches and most > c.links_per_gpu + 1:
        faults.append(f"links_per_gpu: found {c.links_per_gpu} for {most} GPUs without a switch, expected {most - 1} (a link to every other GPU)")
    if (c.family == "hw" or c.gpu) and c.gpu not in list_gpus():
        faults.append(f"gpu: found {show(c.gpu)}, expected one of {', '.join(list_gpus())} (an hw cluster takes that GPU's constants)")
    faults += conflicts_of(c.constants) if c.constants else []
    if c.scale_out is not None and c.n_gpus > c.scale_out.domain_gpus and c.n_gpus % c.scale_out.domain_gpus:
        faults.append(f"n_gpus: found {c.n_gpus}, expected at most {c.scale_out.domain_gpus}, or a multiple of it (GPUs of one NVLink domain)")
    if c.flit_bytes & (c.flit_bytes - 1):
        faults.append(f"flit_bytes: found {c.flit_bytes}, expected a power of two")
    return faults
