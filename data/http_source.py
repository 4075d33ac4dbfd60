"""Records read over a real connection: from another process, over HTTP on loopback.

`HttpSource` starts `python -m data.http_server` and requests records from it. A request is a POST
of a JSON list of indices. The response holds a frame per record: the record's length in four bytes,
then the record as msgpack. Nothing is pickled.
"""

import contextlib
import http.client
import json
import os
import pathlib
import queue
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from flax import serialization

from data.sources import Source, SourceError, UpstreamError, reason

LENGTH_BYTES = 4

_QUOTED_BYTES = 80  # of an unexpected response, in messages

_ROOT = pathlib.Path(__file__).resolve().parent.parent


class ServerLost(UpstreamError):
    """The process that serves the records has ended."""


class HttpSource(Source):
    """The training split of a data set, served by a process that ends with this one.

    Args:
        dataset: the fields of config.dataset.
        arrived: called whenever a record arrives.
        where: names a record in messages, see `Source.where`.

    Attributes:
        server: the process that serves the records.

    Raises:
        SourceError: the server cannot open the data set.
    """

    def __init__(
        self,
        dataset: dict[str, Any],
        arrived: Callable[[], None] = lambda: None,
        where: Callable[[int], str] = "record {}".format,
    ):
        self._arrived, self.where = arrived, where
        self.server = start_server(dataset)
        weakref.finalize(self, _stop_server, self.server)
        assert self.server.stdout is not None
        self._port, self._length = _parse_hello(self.server.stdout.readline())
        self._idle_connections: queue.SimpleQueue = queue.SimpleQueue()

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        connection = self._connection()
        try:
            connection.request("POST", "/", json.dumps([int(index) for index in indices]))
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                text = " ".join(response.read().decode(errors="replace").split())
                raise UpstreamError(f"the HTTP upstream answers {response.status}: {text}")
            records = [self._record(response, index) for index in indices]
            response.read()  # to the end, after which the connection can be reused
        except (OSError, http.client.HTTPException) as error:
            raise ServerLost(
                f"the HTTP upstream on port {self._port} is gone ({reason(error)}) "
                f"while reading record {indices[0]} and {len(indices) - 1} others; "
                "start the run again to resume it"
            ) from error
        self._idle_connections.put(connection)
        return records

    def _connection(self) -> http.client.HTTPConnection:
        with contextlib.suppress(queue.Empty):
            return self._idle_connections.get_nowait()
        return http.client.HTTPConnection("127.0.0.1", self._port)

    def _record(self, response: http.client.HTTPResponse, index: int) -> dict[str, Any]:
        content = _read(response, int.from_bytes(_read(response, LENGTH_BYTES), "big"))
        try:
            record = serialization.msgpack_restore(content)
            if not isinstance(record, dict):
                raise ValueError(f"a {type(record).__name__}")
        except Exception as error:  # msgpack and its extensions raise many types
            raise UpstreamError(
                f"the HTTP upstream on port {self._port} answers with something that is not a "
                f"record ({reason(error)}) while reading {self.where(index)}; start the run again"
            ) from error
        self._arrived()
        return record


def _parse_hello(line: bytes) -> tuple[int, int]:
    """The port and the number of records, from the first line that a server writes."""
    try:
        hello = json.loads(line or '{"error": "its process ended"}')
        if "error" not in hello:
            return int(hello["port"]), int(hello["length"])
        why = hello["error"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"it answers {line[:_QUOTED_BYTES]!r} ({reason(error)})"
    raise SourceError(f"the HTTP upstream cannot serve the training split: {why}")


def _read(response: http.client.HTTPResponse, length: int) -> bytes:
    content = response.read(length)
    if len(content) < length:
        raise http.client.IncompleteRead(content, length - len(content))
    return content


def start_server(dataset: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Starts data/http_server.py and sends it the fields of config.dataset."""
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    server = subprocess.Popen(
        [sys.executable, "-m", "data.http_server"],
        stdin=subprocess.PIPE,  # closes whenever this process ends, which ends the server
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
    )
    assert server.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # then the server sends no hello, which is reported
        server.stdin.write(json.dumps(dataset).encode() + b"\n")
        server.stdin.flush()
    return server


def _stop_server(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.communicate()
