"""Hand-over of a KV cache from one GPU to a GPU of another node, by a rate form: the bytes over the named link, or a copy per descriptor."""


import numpy as np

from dysharp.base import F64, f64, frozen_keywords
from dysharp.costs import link_us
from dysharp.measured.families import Case, Constants, Measurement, Unsupported, family, gpu_of, number
from dysharp.measured.measurements import nic_GBps
from dysharp.specs import Gpu

RAILS = {"mooncake": 1.0, "nixl": 2.0}
"""Library -> NICs of a transfer: Mooncake takes the NIC next to the GPU (Transfer Engine, topology), NIXL's UCX two (UCX_MAX_RNDV_RAILS)."""


@frozen_keywords
class _TransferCase(Case):
    """`n_bytes` in `copies` pieces. `nic_GBps`: rate of the NICs together; 0: over NVLink, where the host launches each copy."""

    n_bytes: float
    copies: float
    nic_GBps: float


def _closed_us(case: _TransferCase, gpu: Gpu, constants: Constants) -> F64:
    """NICs take all pieces one behind the other; copies over NVLink wait for the host, which a serving engine's launch measures."""
    size, nic = f64(case.n_bytes), f64(case.nic_GBps)
    copied = np.maximum(link_us(gpu, constants, size), case.copies * constants["serving.launch_us"])
    return np.asarray(np.where(nic > 0, size / (1e3 * np.maximum(nic, 1.0)), copied))


@family("kv-transfer", belongs=lambda m: m.kind == "kv_transfer", closed_us=_closed_us)
def _case(m: Measurement) -> _TransferCase:
    """The case of a latency."""
    library, fabric, gpu, batch = str(m.config.get("backend")), str(m.config.get("fabric")), gpu_of(m), number(m, "batch")
    if library not in RAILS:
        raise Unsupported(f"a library whose NICs are not known, expected {' or '.join(RAILS)}")
    nic = 0.0 if "scale-up" in fabric else RAILS[library] * nic_GBps(gpu)
    n_bytes, copies = batch * number(m, "bytes_per_request"), batch * number(m, "descriptors")
    return _TransferCase(gpu=gpu, n_bytes=n_bytes, copies=copies, nic_GBps=nic, shape=f"{library} {fabric} {m.config.get('layout')}")
