"""A TaskGraph as Chakra execution traces: one file per GPU, for other simulators.

Field numbers and types: et_def.proto of mlcommons/chakra (schema 0.0.4); names and types of attributes: et_feeder_node.cpp of the
same repository, which ASTRA-sim reads traces with. Each message follows its length as a varint; GlobalMetadata is the first.
"""

from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from dysharp.analysis.timeline.task_graph import TaskGraph
from dysharp.base import PS_PER_US, ByName, make_folder, write_file
from dysharp.program import PULLS, PUSHES, Program, Template

COMP, SEND, RECV = 4, 5, 6  # NodeType
SCHEMA = "0.0.4"
_NODE = (("id", 1, "UINT64"), ("name", 2, "STRING"), ("type", 3, "INT32"), ("data_deps", 5, "UINT64"), ("duration_micros", 7, "UINT64"))
_METADATA = (("version", 1, "STRING"),)
_VALUES = {"int32_val": (7, "INT32"), "int64_val": (9, "INT64"), "uint64_val": (13, "UINT64"), "bool_val": (27, "BOOL"), "string_val": (29, "STRING")}
_ATTRIBUTES = {
    "is_cpu_op": "bool_val", "tensor_size": "uint64_val", "comm_size": "int64_val", "comm_src": "int32_val",
    "comm_dst": "int32_val", "comm_tag": "int32_val", "operator": "string_val", "kind": "string_val", "duration_ps": "int64_val",
}  # fmt: skip


@dataclass(slots=True)
class ChakraNode:
    """One node. `after`: ids of nodes of the same GPU. `attributes`: by the names of `_ATTRIBUTES`."""

    id: int
    name: str
    type: int
    after: list[int]
    attributes: ByName

    @property
    def duration_ps(self) -> int:
        """Time of a COMP_NODE on all slots of its pool."""
        return int(self.attributes.get("duration_ps", 0))


@dataclass(slots=True)
class _Files:
    """The nodes of each GPU, and where the tasks of a graph begin and end."""

    program: Program
    gpus: list[list[ChakraNode]] = field(default_factory=list)
    notices: dict[tuple[int, int, int], int] = field(default_factory=dict)
    ends: dict[tuple[int, int], tuple[int, list[int]]] = field(default_factory=dict)
    """{(task, receiver or -1): (GPU, its nodes)}"""
    tags: int = 0

    def add(self, gpu: int, name: str, node_type: int, after: list[int], **attributes: Any) -> int:
        nodes = self.gpus[gpu]
        nodes.append(ChakraNode(len(nodes), name, node_type, after, {"is_cpu_op": False} | attributes))
        return len(nodes) - 1

    def send(self, source: int, to: int, n_bytes: int, name: str, after: list[int], **attributes: Any) -> tuple[int, int]:
        """A message: (node of the sender, node of the receiver)."""
        both = {"comm_size": n_bytes, "comm_src": source, "comm_dst": to, "comm_tag": self.tags} | attributes
        self.tags += 1
        return self.add(source, name, SEND, after, **both), self.add(to, name, RECV, [], **both)

    def behind(self, task: int, at: int, gpu: int) -> list[int]:
        """Nodes of `gpu` that end behind a task, or behind its copy to the GPU `at`; a notice, where that is on another GPU."""
        place, nodes = self.ends[task, at]
        if place == gpu:
            return nodes
        if (task, at, gpu) not in self.notices:
            size = self.program.hardware.notify_bytes
            _, self.notices[task, at, gpu] = self.send(place, gpu, size, "notice", nodes, operator="notice", kind="SIGNAL")
        return [self.notices[task, at, gpu]]


def _chakra_nodes(graph: TaskGraph, program: Program) -> list[list[ChakraNode]]:
    """The nodes of each GPU, each after the nodes that it waits for.

    | op | nodes |
    |---|---|
    | COMPUTE, DELAY, JOIN; a copy to the own GPU | COMP_NODE |
    | PUT, SIGNAL, MULTICAST | COMM_SEND_NODE, and COMM_RECV_NODE on each receiver |
    | GET, PULL_REDUCE | the same for the request, then for the data on its way back |
    | a wait for something on another GPU | the same for a notice |
    """
    files = _Files(program, [[] for _ in range(program.n_nodes)])
    waits, copies = _lists(graph.waits, len(graph.node)), _lists(graph.copy_task, len(graph.node))
    for task in range(len(graph.node)):
        gpu, template = int(graph.node[task]), program.templates[graph.template[task]]
        after = list(dict.fromkeys(n for i in waits[task] for n in files.behind(int(graph.on[i]), int(graph.at[i]), gpu)))
        if template.kind in PUSHES + PULLS and copies[task]:
            _transfer(files, graph, task, template, copies[task], after)
        else:
            words = {"operator": template.operator, "kind": template.kind.name, "duration_ps": int(graph.busy_ps[task])}
            node = files.add(gpu, _name(graph, task, template), COMP, after, **words)
            files.ends[task, -1] = gpu, [node]
    return files.gpus


def _lists(owner: Any, n: int) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in range(n)]
    for i, task in enumerate(owner.tolist()):
        out[task].append(i)
    return out


def _name(graph: TaskGraph, task: int, template: Template) -> str:
    return f"{template.name} part {int(graph.part[task])}"


def _transfer(files: _Files, graph: TaskGraph, task: int, template: Template, copies: list[int], after: list[int]) -> None:
    """The nodes of the copies of a task."""
    gpu, name, own = int(graph.node[task]), _name(graph, task, template), list[int]()
    words = {"operator": template.operator, "kind": template.kind.name}
    for i in copies:
        other, size = int(graph.copy_to[i]), int(graph.copy_bytes[i])
        if other == gpu:
            begin = end = files.add(gpu, name, COMP, after, tensor_size=size, **words)
        elif template.kind in PULLS:
            asking = files.program.hardware.flit * int(graph.ops[task])
            _, asked = files.send(gpu, other, asking, f"{name} request", after, operator="request", kind="SIGNAL")
            end, begin = files.send(other, gpu, size, name, [asked], **words)
        else:
            begin, end = files.send(gpu, other, size, name, after, **words)
        files.ends[task, other] = other, [end]
        own.append(begin)
    files.ends[task, -1] = gpu, own


def write_chakra(graph: TaskGraph, program: Program, folder: str | Path, name: str, words: str) -> list[Path]:
    """Write `folder/name.GPU.et` for each GPU; `words` become an attribute of its GlobalMetadata. Raises ConfigError as `write_file`."""
    return write_nodes(folder, name, _chakra_nodes(graph, program), words)


def write_nodes(folder: str | Path, name: str, gpus: list[list[ChakraNode]], words: str) -> list[Path]:
    """The same of nodes that are made: those of each GPU."""
    make_folder(Path(folder), "folder")
    return [write_file(Path(folder) / f"{name}.{gpu}.et", partial(_write, nodes, words)) for gpu, nodes in enumerate(gpus)]


def _write(nodes: list[ChakraNode], words: str, stream: IO[bytes]) -> None:
    """Durations are whole microseconds in this schema; they are rounded such that their sum is exact to one microsecond."""
    m, total = _messages(), 0
    head = m["GlobalMetadata"](version=SCHEMA)
    head.attr.add(name="dysharp", string_val=words)
    stream.write(_framed(head))
    for node in nodes:
        before, total = total, total + node.duration_ps
        micros = total // PS_PER_US - before // PS_PER_US
        message = m["Node"](id=node.id, name=node.name, type=node.type, data_deps=node.after, duration_micros=micros)
        for name, value in node.attributes.items():
            message.attr.add(name=name, **{_ATTRIBUTES[name]: value})
        stream.write(_framed(message))


def _framed(message: Any) -> bytes:
    """A message behind its length as a varint."""
    body, size, head = message.SerializeToString(), message.ByteSize(), bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size]) + bytes(body)


@cache
def _messages() -> ByName:
    """The classes of the messages, from the published field numbers."""
    pb, pool = import_module("google.protobuf.descriptor_pb2"), import_module("google.protobuf.descriptor_pool")
    file = pb.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    fields = pb.FieldDescriptorProto
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    attribute.field.add(name="name", number=1, type=fields.TYPE_STRING, label=fields.LABEL_OPTIONAL)
    for name, (number, kind) in _VALUES.items():
        attribute.field.add(name=name, number=number, type=getattr(fields, f"TYPE_{kind}"), label=fields.LABEL_OPTIONAL, oneof_index=0)
    for message, columns in (("GlobalMetadata", _METADATA), ("Node", _NODE)):
        entry = file.message_type.add(name=message)
        for name, number, kind in columns:
            label = fields.LABEL_REPEATED if name == "data_deps" else fields.LABEL_OPTIONAL
            entry.field.add(name=name, number=number, type=getattr(fields, f"TYPE_{kind}"), label=label)
        number = {"GlobalMetadata": 2, "Node": 10}[message]
        attributes = entry.field.add(name="attr", number=number, type=fields.TYPE_MESSAGE, label=fields.LABEL_REPEATED)
        attributes.type_name = ".ChakraProtoMsg.AttributeProto"
    known = pool.DescriptorPool()
    known.Add(file)
    make = import_module("google.protobuf.message_factory").GetMessageClass
    return {name: make(known.FindMessageTypeByName(f"ChakraProtoMsg.{name}")) for name in ("GlobalMetadata", "Node")}
