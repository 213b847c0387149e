"""The balance of load that a Routing puts on GPUs and on pairs of GPUs."""

import numpy as np

from dysharp.analysis.count import loads_that_went_on, remote_members
from dysharp.base import I64, PS_PER_US, ByName, Texts, frozen
from dysharp.costs.gemm import narrow_bytes
from dysharp.costs.operators import ELEMENT_BYTES
from dysharp.program import PULLS, Program, Trace, owners
from dysharp.specs import Cluster, Model
from dysharp.workload import Routing, needed_gpus, rows_per_slot, two_hop
from dysharp.workload.routing import max_over_mean

MOST_GPUS = 72  # above, `to_dict` leaves the table of pairs out
EPLB = "eplb"


@frozen
class Load:
    """The load of a placed Routing.

    placement  name of the placement rule
    note       replicas of the placement, or ""
    pairs      [source GPU, destination GPU] int64: tokens sent, each once per destination; the diagonal uses no link
    rows       [gpus] int64: useful rows of each GPU
    nics       (out, in), each [gpus] int64: token rows by NIC where each remote domain gets a token once (`levels.two_hop`); None in one domain
    """

    placement: str
    note: str
    pairs: I64
    rows: I64
    nics: tuple[I64, I64] | None = None

    @property
    def nics_max_mean(self) -> tuple[float, float] | None:
        """Rows of the NICs of the busiest GPU divided by the mean over GPUs: (out, in); None in one domain."""
        return None if self.nics is None else (max_over_mean(self.nics[0]), max_over_mean(self.nics[1]))

    @property
    def rows_max_mean(self) -> float:
        """Useful rows of the busiest GPU divided by the mean over GPUs."""
        return max_over_mean(self.rows)

    @property
    def received_max_mean(self) -> float:
        """Tokens that the busiest GPU receives divided by the mean over GPUs."""
        return max_over_mean(self._remote.sum(axis=0))

    @property
    def pair_max_mean(self) -> float:
        """Tokens of the busiest pair of GPUs divided by the mean over pairs."""
        off = self._remote[~np.eye(len(self.rows), dtype=bool)]
        return max_over_mean(off) if off.size else 1.0

    @property
    def busiest_pair(self) -> tuple[int, int]:
        """(source GPU, destination GPU) of the pair with most tokens."""
        source, destination = divmod(int(self._remote.argmax()), len(self.rows))
        return source, destination

    @property
    def _remote(self) -> I64:
        return self.pairs * (1 - np.eye(len(self.rows), dtype=np.int64))

    def to_dict(self) -> ByName:
        """The fields as plain values. `pairs` is left out above `MOST_GPUS` GPUs."""
        values: ByName = {
            "placement": self.placement, "note": self.note, "rows_max_mean": self.rows_max_mean, "received_max_mean": self.received_max_mean,
            "pair_max_mean": self.pair_max_mean, "busiest_pair": list(self.busiest_pair), "rows_per_gpu": self.rows.tolist(),
        }  # fmt: skip
        if self.nics is not None:
            values |= {"nic_max_mean": list(self.nics_max_mean or ()), "nic_out_rows": self.nics[0].tolist(), "nic_in_rows": self.nics[1].tolist()}
        return values | ({"tokens_per_pair": self.pairs.tolist()} if len(self.rows) <= MOST_GPUS else {})


def load_of(routing: Routing, domain_gpus: int = 0) -> Load:
    """The load of a placed Routing. `domain_gpus`: GPUs of an NVLink domain; 0 = all."""
    gpus = routing.n_gpus
    pairs = needed_gpus(routing).reshape(gpus, routing.tokens_per_gpu, gpus).sum(axis=1, dtype=np.int64)
    rows = rows_per_slot(routing).reshape(gpus, -1).sum(axis=1)
    nics = two_hop(routing, domain_gpus).far if 0 < domain_gpus < gpus else None
    return Load(routing.placement.kind, routing.placement.note, pairs, rows, nics)


def memory_warning(model: Model, cluster: Cluster, routing: Routing) -> Texts:
    """A line when the experts of all layers of a model do not fit the memory of a GPU."""
    each = model.expert_weights * (narrow_bytes(model) or ELEMENT_BYTES[model.gemm_dtype])
    needed = model.n_layers * routing.placement.slots_per_gpu * each
    if needed <= cluster.hbm_bytes:
        return ()
    return (
        f"memory: the experts of all {model.n_layers} layers take {needed / 1e9:.0f} GB per GPU, but a GPU has {cluster.hbm_bytes / 1e9:.0f} GB; "
        "use pipeline stages or more GPUs",
    )


def eplb_spec(routing: Routing) -> str:
    """The placement to compare a Routing with: "eplb" with its default slots; "auto" if the Routing has EPLB's."""
    return "auto" if routing.placement.kind == EPLB else EPLB


BINS = 20


def up_use(program: Program, trace: Trace) -> list[float]:
    """Mean use of the NVLink up links in each of `BINS` equal parts of the run: trains and responses at the instant of their grant."""
    p, remote, owner = program, remote_members(program), owners(program.members.ptr)
    leaves = np.zeros(p.n_ops, np.bool_)
    leaves[owner[remote]] = True
    ops = np.flatnonzero(leaves & (p.ops.wire >= 0) & (p.op_net() == 0))
    answers = np.flatnonzero(remote & (np.isin(p.kinds(), PULLS) & loads_that_went_on(p, trace))[owner])
    at = np.concatenate([trace.start[ops], trace.member[answers]])
    n_bytes = np.concatenate([p.wires.up[p.ops.wire[ops]], p.wires.response[p.ops.wire[owner[answers]]]])
    sent, _ = np.histogram(at, BINS, (0, max(1, trace.time_ps)), weights=n_bytes)
    most = p.hardware.rate * trace.time_ps / PS_PER_US / BINS * p.n_nodes
    return [round(float(one), 4) for one in sent / max(1.0, most)]
