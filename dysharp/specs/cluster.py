"""`Cluster`: GPUs, links, switches and the sizes of in-network tables of one NVLink domain, or of several equal ones."""

from __future__ import annotations

from dataclasses import MISSING, field, fields, make_dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from dysharp.base import Amounts, ByName, ConfigError, Numbers, frozen, show, units
from dysharp.specs import fields as kinds
from dysharp.specs.choices import choice_int
from dysharp.specs.fields import Amount, AmountOrZero, Delay, Entries, Key, Name, Rate, Small, SmallOrNone, Text, check_fields, keys_of, raise_if
from dysharp.specs.fitted import conflicts_of, fitted_values
from dysharp.specs.gpu import Gpu, list_gpus, load_gpu

SlowNics = tuple[tuple[Annotated[int, Field(strict=True, ge=0)], Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]], ...]


LostNics = tuple[Annotated[int, Field(strict=True, ge=0)], ...]
XGMI_ALONE = 0.75
"""Part of its rate that an xGMI link carries at most, after protocol and error correction: the only link between two GPUs reaches it."""
Oversubscription = Annotated[float, Field(strict=True, ge=1, le=1e3, allow_inf_nan=False)]


@frozen
class ScaleOut:
    """NICs of the GPUs and the network between NVLink domains. GB/s are decimal. Raises `ConfigError` for an invalid value.

    GPU g is in domain g // domain_gpus. Every GPU has its own NICs. The NICs with one index in their domains are a rail: they share a leaf switch.
    """

    domain_gpus: Annotated[Small, Key("GPUs of one NVLink domain")]
    nic_GBps: Annotated[Rate, Key("payload that one NIC moves in one direction, GB/s")]
    latency_us: Annotated[Delay, Key("one way of a small put between GPUs of two domains, us")]
    """From the posting of the put until a polling GPU has seen its flag."""
    nics_per_gpu: Annotated[Small, Key("NICs of one GPU")] = 1
    message_us: Annotated[Delay, Key("time that a NIC needs for a message besides its bytes, us; 0: GPUs post messages themselves")] = 0.0
    slow_nics: Annotated[SlowNics, Key("[GPU, part] pairs: the NICs of this GPU reach this part of their rate")] = ()
    lost_nics: Annotated[LostNics, Key("GPUs that have lost one of their NICs; a GPU must keep one")] = ()
    oversubscription: Annotated[
        Oversubscription, Key("rate of a leaf switch to its NICs over its rate to the spine, which all between rails passes; 1: none")
    ] = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "scale_out")
        if not self.rate:
            raise ConfigError(f"scale_out.nic_GBps: found {self.nic_GBps:g}, expected at least 0.001")

    @property
    def rate(self) -> int:
        """Rate of the NICs of one GPU together, in bytes per microsecond."""
        return units.GBps_to_bytes_per_us(self.nic_GBps * self.nics_per_gpu)

    @property
    def spine_rate(self) -> float:
        """Bytes per microsecond of the NICs of one GPU to another rail."""
        return self.rate / self.oversubscription

    @property
    def straight_rate(self) -> float:
        """The same of rows to every GPU of other domains: of D in each, D - 1 are on other rails."""
        return self.rate / max(1.0, self.oversubscription * (self.domain_gpus - 1) / self.domain_gpus)

    def rates(self, n_gpus: int) -> Numbers:
        """Rates by GPU where a NIC is slow or lost, otherwise ().

        Raises `ConfigError` for a NIC of no GPU, and for a GPU that loses its only NIC.
        """
        parts = [1.0] * n_gpus
        for gpu, part in self.slow_nics:
            parts[_index("slow_nics", gpu, n_gpus)] *= part
        for gpu in self.lost_nics:
            left = self.nics_per_gpu - self.lost_nics.count(gpu)
            if not left:
                reason = "no system sends by the NIC of another GPU"
                raise ConfigError(f"scale_out.lost_nics: found GPU {gpu} without a NIC, expected nics_per_gpu above {self.nics_per_gpu}: {reason}")
            parts[_index("lost_nics", gpu, n_gpus)] *= left / (left + 1)
        return tuple(max(1, round(self.rate * part)) for part in parts) if self.slow_nics or self.lost_nics else ()


def _index(key: str, gpu: int, n_gpus: int) -> int:
    if gpu >= n_gpus:
        raise ConfigError(f"scale_out.{key}: found GPU {gpu}, expected 0 to {n_gpus - 1}")
    return gpu


MAX_GPUS = 1024
PACKET_BYTES = 128  # payload of a packet, and the value of an entry of a reduction table
SCOPE = "this cluster is one NVLink domain; a cluster with a [scale_out] table joins several, such as hw-dgx-h100-x4"
"""Where more GPUs are, in errors."""


@frozen
class Cluster:
    """NVLink domains: one, or several with `scale_out`. Raises `ConfigError` for an invalid value.

    Times are in picoseconds, rates per microsecond; a `Key` says how a field stands in a cluster file. The tables' records in `protocol/`
    explain the keys of tables.
    """

    name: Annotated[Name, Key("name of the cluster")]
    family: Annotated[kinds.Family, Key("paper: the assumptions of a paper; hw: a machine that one can buy, with fitted constants")]
    n_gpus: Annotated[Small, Key("GPUs in use when --gpus is not given")]
    n_switches: Annotated[
        SmallOrNone, Key("switch chips; every GPU has links to every chip, so their number moves no MoE layer; 0: every pair of GPUs has a link")
    ]
    links_per_gpu: Annotated[Small, Key("links of a GPU; each ends at one switch port, or at another GPU")]
    link_bytes_per_us: Annotated[
        Amount, Key("rate of all links of a GPU together, one direction, GB/s", "link_GBps", kinds.LinkRate, units.GBps_to_bytes_per_us)
    ]
    link_latency_ps: Annotated[AmountOrZero, Key("latency of one hop, GPU to switch or switch to GPU, ns", "link_latency_ns", Delay, units.ns_to_ps)]
    flit_bytes: Annotated[Small, Key("bytes of a flit; a power of two")]
    n_vcs: Annotated[Small, Key("virtual channels per group of a port: requests, and responses; more can slow as vc_flits")]
    vc_flits: Annotated[kinds.EntriesOrInfinite, Key("flits of one virtual channel; 0: no limit; more can slow layers by 4 %: Dispatch fills them")]
    internal_speedup: Annotated[Small, Key("rate of the switch crossbar over the link rate")]
    n_sms: Annotated[Small, Key("SMs of a GPU; a variant that names no FLOP/s has peaks in proportion")]
    fp8_flops_per_us: Annotated[Amount, Key("dense FP8 peak of a GPU, TFLOP/s", "fp8_TFLOPS", Rate, units.TFLOPS_to_flops_per_us)]
    bf16_flops_per_us: Annotated[Amount, Key("dense BF16 peak of a GPU, TFLOP/s", "bf16_TFLOPS", Rate, units.TFLOPS_to_flops_per_us)]
    hbm_bytes_per_us: Annotated[Amount, Key("memory rate of a GPU, GB/s", "hbm_GBps", Rate, units.GBps_to_bytes_per_us)]
    hbm_bytes: Annotated[Amount, Key("memory of a GPU as its datasheet counts it, GB", "hbm_GB", Rate, units.memory_to_bytes)]
    reduction_buffer_bytes: Annotated[AmountOrZero, Key("", "reduction_buffer_KiB", Delay, units.KiB_to_bytes)]
    multimemq_entries: Entries
    al_tlb_entries: Entries
    ts_entries: Entries
    or_entries: Entries
    tile_rows: Annotated[Small, Key("rows of a tracked tile in hardware; GEMMs have the choice gemm.tile_rows")]
    source: Annotated[Text, Key("where the numbers are from")] = ""
    gpu: Annotated[Text, Key("packaged GPU with datasheet and constants; needed for family hw")] = ""
    max_gpus: Annotated[kinds.EntriesOrInfinite, Key("most GPUs that can be used; 0: n_gpus")] = 0
    constants: Annotated[kinds.Constants, Key("table of fitted constants that replace the packaged ones; `dysharp calibrate` writes it")] = ()
    host_factor: Annotated[Rate, Key("time of a launch and of a server's step by its hosts over that on a DGX's hosts, which were measured")] = 1.0
    scale_out: Annotated[ScaleOut | None, Key("table [scale_out]: the network between NVLink domains; without it the cluster is one domain")] = None

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

        On hw clusters the part `mori.link_part` of the datasheet's rate, or `XGMI_ALONE`.
        """
        part = (XGMI_ALONE if self.domain_gpus == 2 else self.fitted["mori.link_part"]) if self.family == "hw" else 1.0
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
    def fitted(self) -> Amounts:
        """The fitted constants of this machine by name."""
        return self.over(fitted_values())

    def over(self, constants: Amounts) -> Amounts:
        """Constants as this machine has them: its own before those of its GPU before `constants`."""
        return constants | dict((*(load_gpu(self.gpu).constants if self.gpu else ()), *self.constants))

    @property
    def shared_memory_rate(self) -> int:
        """Memory rate that the SMs and transfers of a GPU share, in bytes per microsecond; of an hw GPU the part that it reaches."""
        return round(self.hbm_bytes_per_us * (self.fitted["hbm.fraction"] if self.gpu else 1.0))

    @property
    def own_gpu(self) -> Gpu:
        """The packaged GPU with the SMs, rates and memory of this cluster. The FP4 rate scales as the FP8 rate.

        Raises `ConfigError` for a cluster without `gpu`.
        """
        return _own_gpu(self)

    def with_gpus(self, n: int) -> Cluster:
        """The cluster with `n` GPUs in use, 1 to `max_gpus`. Links, switches and tables do not change.

        Raises `ConfigError` for another `n`.
        """
        limit = self.max_gpus or self.n_gpus
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= limit:
            beyond = f": {SCOPE}" if isinstance(n, int) and n > limit else ""
            raise ConfigError(f'cluster "{self.name}": found {show(n)} GPUs, expected 1 to {limit}{beyond}')
        return replace(self, n_gpus=n, max_gpus=limit)  # a conflict with the domains is an error of the Cluster


@lru_cache(maxsize=256)
def _own_gpu(cluster: Cluster) -> Gpu:
    if not cluster.gpu:
        raise ConfigError(f"cluster {cluster.name}: found no gpu, expected a cluster of real GPUs such as hw-dgx-h200")
    named = load_gpu(cluster.gpu)
    own = {key: value for key, value in file_values(cluster).items() if key in ("n_sms", "hbm_GB") or key.endswith(("_TFLOPS", "_GBps"))}
    return replace(named, **own, fp4_TFLOPS=named.fp4_TFLOPS * (own["fp8_TFLOPS"] / named.fp8_TFLOPS))


def file_values(cluster: Cluster) -> ByName:
    """The fields of a cluster by key and in units of a cluster file."""
    values = ((key, getattr(cluster, field)) for field, key in keys_of(Cluster).items())
    return {key.name: float(f"{value / key.convert(1):.9g}") if key.convert else value for key, value in values}


def _conflicts(c: Cluster) -> list[str]:
    """Broken rules between fields. Each field alone is valid already."""
    faults = []
    limit = c.max_gpus or MAX_GPUS
    if limit > MAX_GPUS:
        faults.append(f"max_gpus: found {c.max_gpus}, expected at most {MAX_GPUS}")
    if c.n_gpus > limit:
        faults.append(f"n_gpus: found {c.n_gpus}, expected at most max_gpus = {limit}")
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
    if 0 < c.reduction_buffer_bytes < session_bytes():
        found, least = c.reduction_buffer_bytes / units.KiB, session_bytes() / units.KiB
        faults.append(f"reduction_buffer_KiB: found {found:g}, expected 0, or at least {least:g} (one FP32 sum)")
    return faults


_DEFAULTS = {f.name: () if f.default is MISSING else (field(default=f.default),) for f in fields(Cluster)}
_KEYS = [(key.name, key.kind, *_DEFAULTS[name]) for name, key in keys_of(Cluster).items()]
ClusterFile: type[Any] = make_dataclass("ClusterFile", _KEYS, frozen=True)
"""Keys of a cluster TOML, in the units that people write: GB/s, ns, KiB; GB and GB/s are decimal. They follow from the fields of `Cluster`."""


def cluster_of(table: ByName) -> Cluster:
    """The `Cluster` of a table that fits `ClusterFile`, in engine units. Raises `ConfigError` when values conflict."""
    given = [(name, key.convert, table[key.name]) for name, key in keys_of(Cluster).items() if key.name in table]
    values: ByName = {name: convert(value) if convert else value for name, convert, value in given}
    return Cluster(**values)


def session_bytes() -> int:
    """Bytes of one reduction session: `dysharp.fp32_sum_entries` entries of 128 B."""
    return PACKET_BYTES * choice_int("dysharp.fp32_sum_entries")
