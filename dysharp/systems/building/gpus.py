"""`GpuBuilder`: a Program under construction on numbered GPUs. What builders of layers, collectives and sub-layers have in common.

`Software`: what communication kernels cost on a real GPU. The class turns fitted constants (specs/data/fitted.toml) into picoseconds of ops.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import PS_PER_US, ConfigError, Tally, Texts
from dysharp.costs import arch_of, hbm_us, launch_us, permute_us
from dysharp.costs import collectives as times
from dysharp.costs.transfer import fifo_copy_us
from dysharp.program import CLASSES, I32, I64, Discipline, Framing, Head, Ints, Kind, ProgramBuilder, Tail, Template, To, hardware_of
from dysharp.specs import Cluster
from dysharp.systems.building.batch import Batch, ids

L2_CLOCKS = 281
"""From a load to its value out of L2 (GH200; B200 295)."""


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

    @property
    def load_ps(self) -> int:
        """Time of a load of a warp from L2."""
        return round(L2_CLOCKS * PS_PER_US / self._gpu.boost_MHz)

    def moved_ps(self, n_bytes: float) -> int:
        """Time of a step in which all SMs move `n_bytes` (reads plus writes): their loads and stores per clock, or memory."""
        issued = n_bytes / (self._gpu.n_sms * self._gpu.boost_MHz * self._fitted["sm.permute_bytes"])
        return max(self.stream_ps(n_bytes), round(issued * PS_PER_US))

    def collective_ps(self, kind: str, n_gpus: int, n_bytes: int) -> int:
        """Time of an NCCL collective of `kind`. `n_bytes`: the size in nccl-tests (`costs.collectives`)."""
        return round(float(times.collective_us(self._gpu, self._fitted, kind, n_gpus, n_bytes)) * PS_PER_US)

    def ring(self, n_gpus: int, n_bytes: int) -> tuple[int, float]:
        """An all-gather or reduce-scatter of `n_bytes` in total by NCCL's ring, with the protocol that its tuner takes.

        Returns (ps without the time of the bytes on a link, the argument `part` of `ring_ps` for the bytes).
        """
        part = times.PROTOCOLS[int(times.ring_protocol(self._gpu, 1, n_gpus, n_bytes))].part
        return self.collective_ps("all_gather", n_gpus, n_bytes) - self.ring_ps(n_bytes * (n_gpus - 1) / n_gpus, part), part

    def rail_rings(self, n_bytes: int) -> tuple[int, int, float]:
        """As `ring` over the NVLink domains of the cluster: (ps without the bytes, ps of the bytes on a NIC, part)."""
        c = self._cluster
        assert c.scale_out is not None
        rate = c.scale_out.rate / 1000
        start, moved, part = times.rail_rings_us(self._gpu, self._fitted, c.domain_gpus, c.domains, rate, n_bytes)
        return round(start * PS_PER_US), round(moved * PS_PER_US), part

    def ring_ps(self, n_bytes: float, part: float) -> int:
        """Time in which a ring brings `n_bytes` out of one GPU, at `part` of its rate."""
        return round(float(times.ring_us(self._gpu, n_bytes)) / part * PS_PER_US)

    def alltoall_ps(self, sent_bytes: int, own_bytes: int) -> int:
        """Time of NCCL's alltoall of one GPU in which no link is busy. `own_bytes` of `sent_bytes` stay on the GPU."""
        return round(float(times.alltoall_start_us(self._gpu, self._fitted, sent_bytes, own_bytes)) * PS_PER_US)

    @property
    def sync_ps(self) -> int:
        """Time of an exchange of flags between the `n_gpus` GPUs."""
        return round(float(times.sync_us(self._gpu, self._fitted, self._n_gpus)) * PS_PER_US)

    @property
    def kernel_ps(self) -> int:
        """Time of start and drain of one kernel."""
        return round(launch_us(self._gpu, self._fitted) * PS_PER_US)


class GpuBuilder:
    """Issuers, ops and waits. `gpus`: `[gpus]` int32, 0, 1, 2, ... Heads wait for tails; tails that are None hold nothing back."""

    def __init__(self, cluster: Cluster, n_gpus: int, classes: Texts = CLASSES, **program: Any) -> None:
        """`program`: further arguments of `ProgramBuilder`; the hardware is the cluster's by default."""
        self.b = ProgramBuilder(program.pop("hardware", None) or hardware_of(cluster), n_gpus, classes, **program)
        self.cluster, self.n_gpus, self.gpus = cluster, n_gpus, ids(0, n_gpus)
        measured = times.FLIGHT_US.get(cluster.own_gpu.arch) if cluster.gpu else None
        self.flight_ps = round(measured * PS_PER_US) if measured else 2 * self.b.hardware.lat
        """From a GPU over the switch to another GPU, in measured times that contain it; a flight of the Program takes two hops of the cluster."""
        self.traffic: dict[str, Tally] = {}
        self._once: dict[Template | Framing, int] = {}

    @cached_property
    def costs(self) -> Software:
        """Costs of software on the GPU of the cluster. Raises ConfigError on a cluster that names no GPU."""
        return Software(self.cluster, self.n_gpus)

    def declare(self, operator: str, n_bytes: int, *sides: str) -> None:
        """Declare bytes of payload that go over the links of `sides`."""
        for side in sides:
            moved = self.traffic.setdefault(side, {})
            moved[operator] = moved.get(operator, 0) + n_bytes

    def once(self, one: Template | Framing) -> int:
        """The id of a template or framing; equal ones are one."""
        if one not in self._once:
            self._once[one] = self.b.template(one) if isinstance(one, Template) else self.b.framing(one)
        return self._once[one]

    # ---- who issues ----------------------------------------------------------------------------------------------------

    def issuers(
        self,
        name: str,
        discipline: Discipline = Discipline.PROGRAM_ORDER,
        *,
        each: int = 1,
        slots: int = 0,
        pools: Sequence[int] | I32 | None = None,
        node: Ints | None = None,
    ) -> I32:
        """`[gpus x each]` issuers, those of a GPU one behind the other; or one on each of `node`.

        `slots`: of a pool of its own. `pools`: a pool for each instead. Without both an issuer takes no slots.
        """
        nodes = (np.repeat(self.gpus, each) if node is None else node).tolist()
        if slots:
            pools = [self.b.pool(g, slots, name) for g in nodes]
        taken = [-1] * len(nodes) if pools is None else [int(pool) for pool in pools]
        return np.array([self.b.issuer(g, discipline, name=name, pool=pool) for g, pool in zip(nodes, taken, strict=True)], np.int32)

    def ready(self, name: str, pools: Sequence[int] | I32 | None = None) -> I32:
        """`[gpus]` issuers that take the op that was ready first, smallest `prio` first."""
        return self.issuers(name, Discipline.READY_FIFO, pools=pools)

    def pools(self, slots: int, name: str = "sm") -> list[int]:
        """`[gpus]` one pool of `slots` slots per GPU."""
        return [self.b.pool(g, slots, name) for g in range(self.n_gpus)]

    def semaphores(self, most: int, name: str, unit: str = "tokens", *, each: int = 1) -> I32:
        """`[gpus x each]` semaphores, which let `most` units pass at once."""
        return np.array([self.b.semaphore(g, most, name, unit) for g in np.repeat(self.gpus, each).tolist()], np.int32)

    def counted(self, gpus: Ints) -> I64:
        """`[gpus]` how often each GPU stands in `gpus`."""
        return np.bincount(gpus, minlength=self.n_gpus)

    # ---- ops -----------------------------------------------------------------------------------------------------------

    def add(self, template: Template | int, node: ArrayLike, **columns: Any) -> I32:
        """`[n]` ops, one on each of `node`. `columns`: of `ProgramBuilder.ops`."""
        made = self.b.template(template) if isinstance(template, Template) else template
        return ids(self.b.ops(made, node, **columns), np.size(node))

    def between_gpus(
        self, template: Template | int, node: I32, to: ArrayLike, row: ArrayLike | None = None, *, each: int = 1, rows: Ints | None = None,
        **columns: Any,
    ) -> I32:  # fmt: skip
        """Transfers between `node[i]` and its `each` GPUs of `to`. `row`: the region rows that they fill, one for each of `to`, or `rows[i]`."""
        fills = rows if rows is not None or row is None else np.broadcast_to(np.int32(1), (np.size(to),))
        return self.add(template, node, to=To(each, to, fills, row), **columns)

    def delays(
        self, name: str, took_ps: ArrayLike, node: ArrayLike, issuer: I32, operator: str = "other", n_bytes: ArrayLike = 0, **columns: ArrayLike
    ) -> I32:
        """A DELAY on each of `node` with one task, of `took_ps[rows]` and `n_bytes[rows]` of memory."""
        duration = self.b.duration(took_ps, n_bytes)
        return self.add(Template(name, Kind.DELAY, operator, "delay", tasks=1, duration=duration), node, issuer=issuer, **columns)

    def join(self, name: str, *after: I32 | Batch | None, tiles: I32 | None = None) -> I32:
        """`[gpus]` one JOIN per GPU, which only waits: for each `after[gpu]`, or for the ops of a batch on its GPU, and for `tiles[gpu]`."""
        join = self.joins(name, self.gpus)
        for tails in after:
            self.wait_each(*((join[tails.node], tails.op) if isinstance(tails, Batch) else (join, tails)))
        self.wait_tiles(join, tiles)
        return join

    def joins(self, name: str, node: ArrayLike) -> I32:
        """A JOIN on each of `node`."""
        return self.add(Template(name, Kind.JOIN, "other", "join"), node)

    # ---- waits ---------------------------------------------------------------------------------------------------------

    def wait(self, heads: ArrayLike, tails: ArrayLike, tail: Tail = Tail.OP_DONE) -> None:
        """Op `heads[i]` waits for `tails[i]`; either may have fewer entries or axes."""
        heads, tails = np.broadcast_arrays(np.asarray(heads), np.asarray(tails))
        self.b.edges(tail, tails.ravel(), Head.OP_ISSUE, heads.ravel())

    def wait_each(self, heads: I32 | tuple[I32, ...], *tails: I32 | None) -> None:
        """Op `heads[i]` waits for op `tails[i]`, of each array of a tuple of heads and of several tails."""
        for head in heads if isinstance(heads, tuple) else (heads,):
            for tail in tails:
                if tail is not None:
                    self.b.edges(Tail.OP_DONE, tail, Head.OP_ISSUE, head)

    def wait_all(self, heads: I32, tails: I32 | None) -> None:
        """Every op of `heads` waits for all ops of `tails`."""
        if tails is not None:
            tail, head = np.meshgrid(tails, heads)
            self.wait_each(head.ravel(), tail.ravel())

    def wait_tiles(self, heads: I32, tiles: I32 | None) -> None:
        """Op `heads[i]` waits until region tile `tiles[i]` is ready; -1: the op does not wait."""
        if tiles is not None:
            self.b.edges(Tail.TILE_READY, tiles[tiles >= 0], Head.OP_ISSUE, heads[tiles >= 0])

    def wait_first(self, batch: Batch, tails: I32 | None, *, tail: Tail = Tail.OP_DONE, stream: Ints | None = None) -> None:
        """The first op of each stream of `batch` waits for `tails[gpu]`.

        In a stream in program order, all later ops wait behind the first op.

        `tail`: whether `tails` are ops (OP_DONE) or region tiles (TILE_READY). `stream`: `[n]` the stream of each op
        (default: its GPU).
        """
        if tails is None:
            return
        of = batch.node if stream is None else stream
        by_id = np.argsort(batch.op, kind="stable")[::-1]
        first = np.full(int(of.max(initial=-1)) + 1, -1, np.int64)
        first[of[by_id]] = by_id  # the smallest id is written last
        first = first[first >= 0]
        self.b.edges(tail, tails[batch.node[first]], Head.OP_ISSUE, batch.op[first])
