"""The TOML form of a `Cluster`, in the units that people write: GB/s, ns, KiB."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp import units
from dysharp.specs.cluster import Cluster
from dysharp.specs.fields import Constants, Delay, Entries, EntriesOrInfinite, Family, LinkRate, Name, Rate, Small, SmallOrNone, Text
from dysharp.specs.scale_out import ScaleOut


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """Keys of a cluster TOML. GB and GB/s are decimal. `to_cluster` converts them."""

    name: Name
    family: Family
    n_gpus: Small
    n_switches: SmallOrNone
    links_per_gpu: Small
    link_GBps: LinkRate
    link_latency_ns: Delay
    flit_bytes: Small
    n_vcs: Small
    vc_flits: EntriesOrInfinite
    internal_speedup: Small
    n_sms: Small
    fp8_TFLOPS: Rate
    bf16_TFLOPS: Rate
    hbm_GBps: Rate
    hbm_GB: Rate
    reduction_buffer_KiB: Delay
    multimemq_entries: Entries
    al_tlb_entries: Entries
    ts_entries: Entries
    or_entries: Entries
    tile_rows: Small
    source: Text = ""
    gpu: Text = ""
    max_gpus: EntriesOrInfinite = 0
    constants: Constants = ()
    scale_out: ScaleOut | None = None

    def to_cluster(self) -> Cluster:
        """The `Cluster` with these values in engine units. Raises `ConfigError` when values conflict."""
        return Cluster(
            name=self.name,
            family=self.family,
            n_gpus=self.n_gpus,
            n_switches=self.n_switches,
            links_per_gpu=self.links_per_gpu,
            link_bytes_per_us=units.GBps_to_bytes_per_us(self.link_GBps),
            link_latency_ps=units.ns_to_ps(self.link_latency_ns),
            flit_bytes=self.flit_bytes,
            n_vcs=self.n_vcs,
            vc_flits=self.vc_flits,
            internal_speedup=self.internal_speedup,
            n_sms=self.n_sms,
            fp8_flops_per_us=units.TFLOPS_to_flops_per_us(self.fp8_TFLOPS),
            bf16_flops_per_us=units.TFLOPS_to_flops_per_us(self.bf16_TFLOPS),
            hbm_bytes_per_us=units.GBps_to_bytes_per_us(self.hbm_GBps),
            hbm_bytes=units.GB_to_bytes(self.hbm_GB),
            reduction_buffer_bytes=units.KiB_to_bytes(self.reduction_buffer_KiB),
            multimemq_entries=self.multimemq_entries,
            al_tlb_entries=self.al_tlb_entries,
            ts_entries=self.ts_entries,
            or_entries=self.or_entries,
            tile_rows=self.tile_rows,
            source=self.source,
            gpu=self.gpu,
            max_gpus=self.max_gpus,
            constants=self.constants,
            scale_out=self.scale_out,
        )
