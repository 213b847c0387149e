"""The machine of a measurement, and whether measurements of that machine are predicted."""

from dysharp.measured.measurements import Measurement, Unsupported
from dysharp.specs import list_clusters, load_cluster
from dysharp.specs.gpu import list_gpus

GPUS = (
    ("GB300", "gb300"),
    ("GB200", "gb200"),
    ("B300", "b300"),
    ("B200", "b200"),
    ("SM100", "b200"),
    ("H100", "h100-sxm"),
    ("H200", "h200-sxm"),
    ("H800", "h800"),
    ("H20", "h20"),
    ("A100-PCIe", "a100-pcie"),
    ("A100-SXM", "a100-sxm"),
    ("MI300X", "mi300x"),
    ("MI308X", "mi308x"),
    ("MI355X", "mi355x"),
)
"""Text in the column `hardware` -> packaged GPU; the first match counts."""
NOT_PACKAGED = ("GH200", "L20")
"""Texts that mean another GPU, although they contain or accompany the name of a packaged GPU."""
OTHER_GPUS = ("Ascend", "L20")
MESH_GPUS, MESH_KERNELS = ("MI300X", "MI308X", "MI355X", "gfx942"), "MoRI"
"""Texts in `hardware` of machines without a switch, and the start of `system` of the kernels that are predicted there."""
SEVERAL_DOMAINS = ("PCIe", "IB", "EFA", "multi-node", "4x8 H800", "+ CX7")
"""Texts in `hardware` of machines with several NVLink domains or without NVLink."""
ONE_NODE = "1x"  # the start of `hardware` of one node, whose NICs carry nothing
NO_GPU = "no packaged GPU of this kind"
NO_SWITCH = "a fabric without a switch: only MoRI's kernels are predicted there"
NO_DOMAIN = "more than one NVLink domain"
RETIRED = "its authors have withdrawn it"
GPUS_PER_NODE = 8  # of machines whose text says "/node"
CLUSTERS = {
    "h100-sxm": "hw-dgx-h100",
    "h200-sxm": "hw-dgx-h200",
    "h800": "hw-dgx-h800",
    "b200": "hw-dgx-b200",
    "gb200": "hw-gb200-tray",
    "h20": "hw-hgx-h20",
    "b300": "hw-hgx-b300",
    "gb300": "hw-gb300-tray",
    "mi300x": "hw-mi300x",
    "mi308x": "hw-mi308x",
    "mi355x": "hw-mi355x",
}
"""Packaged GPU -> the packaged cluster that its Programs are built for."""
NICS_OF = "hw-dgx-h100-x2"
"""The packaged cluster whose NICs all measured machines of several domains have: one ConnectX-7 of 400 Gb/s per GPU."""


def out_of_scope(m: Measurement) -> str:
    """Why measurements of this machine are not predicted; "" for a machine of one NVLink domain, or of one node without a switch.

    A measurement with the key `status` is out of scope, too: its authors have withdrawn it.
    Reads the columns `hardware` and `system` and five keys of `config_json`, and no other part of the measurement.
    """
    if "status" in m.config:
        return RETIRED
    if any(text in m.hardware for text in OTHER_GPUS):
        return NO_GPU
    if any(text in m.hardware for text in MESH_GPUS) and not m.system.startswith(MESH_KERNELS):
        return NO_SWITCH
    return NO_DOMAIN if spans_domains(m) else ""


def spans_domains(m: Measurement) -> bool:
    """Whether a measurement is of several NVLink domains, or of GPUs without NVLink."""
    if "crosses_nodes_by_rdma" in m.config:  # trays of a rack are one domain
        return bool(m.config["crosses_nodes_by_rdma"])
    gpus = m.config.get("ep", GPUS_PER_NODE)
    domains = (
        any(text in m.hardware for text in SEVERAL_DOMAINS) and not m.hardware.startswith(ONE_NODE),
        m.config.get("nodes", 1) != 1,
        m.config.get("link", "NVLink") != "NVLink",
        m.config.get("bottleneck", "NVLink") != "NVLink",
        "/node" in m.hardware and isinstance(gpus, (int, float)) and gpus > GPUS_PER_NODE,
        "pure RDMA" in m.system,
    )
    return any(domains)


def gpu_of(m: Measurement) -> str:
    """The packaged GPU of a measurement. Raises `Unsupported` where there is none."""
    if m.hardware in list_gpus():  # the owner of a cluster named the GPU
        return m.hardware
    name = next((gpu for text, gpu in GPUS if text in m.hardware), "")
    if not name or any(text in m.hardware for text in NOT_PACKAGED):
        raise Unsupported(NO_GPU)
    return name


def check_cluster(gpu: str, gpus: int) -> None:
    """Raise `Unsupported` where no packaged cluster has `gpus` GPUs of this kind."""
    if gpu not in CLUSTERS or gpus > (load_cluster(CLUSTERS[gpu]).max_gpus or 1):
        raise Unsupported(f"no packaged cluster of {gpus} {gpu}")


def nic_GBps(gpu: str) -> float:
    """Rate of the NIC of a GPU in the packaged cluster of two domains. Raises `Unsupported` where there is none."""
    name = f"{CLUSTERS.get(gpu, '').replace('tray', 'nvl72')}-x2"
    if name not in list_clusters() or (net := load_cluster(name).scale_out) is None:
        raise Unsupported(f"no packaged cluster of two domains of {gpu}")
    return net.nic_GBps
