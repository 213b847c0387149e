"""`Software`: the costs of communication kernels on a real GPU.

The class turns fitted constants (specs/data/fitted.toml) into picoseconds of ops.
"""

from dysharp.base.errors import ConfigError
from dysharp.base.units import PS_PER_US
from dysharp.costs.collectives import PROTOCOLS, alltoall_start_us, collective_us, rail_rings_us, ring_protocol, ring_us, sync_us
from dysharp.costs.moe import permute_us
from dysharp.costs.operators import arch_of, hbm_us, launch_us
from dysharp.costs.transfer import fifo_copy_us
from dysharp.specs import Cluster


class Software:
    """Costs in ps on the GPU of a cluster. `n_gpus`: GPUs that communicate (default: all GPUs of the cluster).

    Raises ConfigError for a cluster that names no GPU.
    """

    def __init__(self, cluster: Cluster, n_gpus: int | None = None) -> None:
        if not cluster.gpu:
            where = f'software costs: found cluster "{cluster.name}" without a GPU'
            raise ConfigError(f"{where}, expected an hw-* cluster (it names a GPU with fitted constants)")
        self._n_gpus = cluster.n_gpus if n_gpus is None else n_gpus
        self._cluster, self._gpu = cluster, cluster.own_gpu
        self._link_bytes_per_us = cluster.link_bytes_per_us
        self._fitted = cluster.fitted

    def ps(self, name: str, times: float = 1.0) -> int:
        """`times` multiplied by a fitted constant in us, as ps."""
        return round(self._fitted[name] * times * PS_PER_US)

    def value(self, name: str) -> float:
        """A fitted constant in the unit that `fitted.toml` states."""
        return self._fitted[name]

    def whole(self, name: str) -> int:
        """A fitted constant that is a count, rounded, at least 1."""
        return max(1, round(self._fitted[name]))

    def copy_ps(self, name: str, n_bytes: int) -> int:
        """Time in which one SM copies `n_bytes` at a fitted rate in GB/s."""
        return round(n_bytes * 1000 / self._fitted[name])

    def stores_ps(self, n_bytes: int, part: str = "") -> int:
        """Time in which SM stores bring `n_bytes` out of one GPU.

        `part`: name of the constant that holds the reached fraction of the full rate; "" = the full rate. ARCH in the
        name stands for the architecture of the GPU.
        """
        name = part.replace("ARCH", arch_of(self._gpu))
        rate = self._link_bytes_per_us * self._fitted["link.fraction"] * (self._fitted[name] if part else 1.0)
        return round(n_bytes * PS_PER_US / rate)

    def fifo_ps(self, row_bytes: int, *, fields: int = 1, low_precision: bool = False) -> int:
        """Time of a GPU for a copy of a row in the FIFOs of TensorRT-LLM's two-sided kernel."""
        copy_us = fifo_copy_us(self._gpu, self._fitted, row_bytes, self._n_gpus, fields=fields, low_precision=low_precision)
        return round(float(copy_us) * PS_PER_US)

    def reorder_ps(self, tokens: int, rows: int, hidden: int, row_bytes: float) -> int:
        """Time of one kernel that scatters `tokens` rows to `rows` places, or gathers them."""
        return round(float(permute_us(self._gpu, self._fitted, tokens, rows, hidden, row_bytes)) * PS_PER_US / 2)

    def memory_ps(self, n_bytes: float) -> int:
        """Time of one kernel that moves `n_bytes` (reads plus writes) through the memory of its GPU."""
        return self.kernel_ps + self.stream_ps(n_bytes)

    def stream_ps(self, n_bytes: float) -> int:
        """Time of a step inside a kernel that moves `n_bytes` (reads plus writes) through the memory of its GPU."""
        return round(float(hbm_us(self._gpu, self._fitted, n_bytes)) * PS_PER_US)

    def moved_ps(self, n_bytes: float) -> int:
        """Time of a step in which all SMs move `n_bytes` (reads plus writes): their loads and stores per clock, or memory."""
        issued = n_bytes / (self._gpu.n_sms * self._gpu.boost_MHz * self._fitted["sm.permute_bytes"])
        return max(self.stream_ps(n_bytes), round(issued * PS_PER_US))

    def collective_ps(self, kind: str, n_gpus: int, n_bytes: int) -> int:
        """Time of an NCCL collective of `kind`. `n_bytes`: the size in nccl-tests (`costs.collectives`)."""
        return round(float(collective_us(self._gpu, self._fitted, kind, n_gpus, n_bytes)) * PS_PER_US)

    def ring(self, n_gpus: int, n_bytes: int) -> tuple[int, float]:
        """An all-gather or reduce-scatter of `n_bytes` in total by NCCL's ring, with the protocol that its tuner takes.

        Returns (ps without the time of the bytes on a link, the argument `part` of `ring_ps` for the bytes).
        """
        part = PROTOCOLS[int(ring_protocol(self._gpu, 1, n_gpus, n_bytes))].part
        return self.collective_ps("all_gather", n_gpus, n_bytes) - self.ring_ps(n_bytes * (n_gpus - 1) / n_gpus, part), part

    def rail_rings(self, n_bytes: int) -> tuple[int, int, float]:
        """As `ring` over the NVLink domains of the cluster: (ps without the bytes, ps of the bytes on a NIC, part)."""
        c = self._cluster
        assert c.scale_out is not None
        rate = c.scale_out.rate / 1000
        start, moved, part = rail_rings_us(self._gpu, self._fitted, c.domain_gpus, c.domains, rate, n_bytes)
        return round(start * PS_PER_US), round(moved * PS_PER_US), part

    def ring_ps(self, n_bytes: float, part: float) -> int:
        """Time in which a ring brings `n_bytes` out of one GPU, at `part` of its rate."""
        return round(float(ring_us(self._gpu, n_bytes)) / part * PS_PER_US)

    def alltoall_ps(self, sent_bytes: int, own_bytes: int) -> int:
        """Time of NCCL's alltoall of one GPU in which no link is busy. `own_bytes` of `sent_bytes` stay on the GPU."""
        return round(float(alltoall_start_us(self._gpu, self._fitted, sent_bytes, own_bytes)) * PS_PER_US)

    @property
    def sync_ps(self) -> int:
        """Time of an exchange of flags between the `n_gpus` GPUs."""
        return round(float(sync_us(self._gpu, self._fitted, self._n_gpus)) * PS_PER_US)

    @property
    def kernel_ps(self) -> int:
        """Time of start and drain of one kernel."""
        return round(launch_us(self._gpu, self._fitted) * PS_PER_US)
