"""Records read over a real connection: from a process of their own, over HTTP on loopback.

`HttpSource` starts `python -m data.http_server` and asks it for records. A request is a POST of
a JSON list of indices; the answer is a frame for each record, its length in four bytes and the
record as msgpack. There is no pickle on the wire.
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

from data.errors import SourceError, reason
from data.throttle import UpstreamError

LENGTH_BYTES = 4

_DISPLAYED_BYTES = 80  # of an answer that is not understood

_ROOT = pathlib.Path(__file__).resolve().parent.parent


class ServerLost(UpstreamError):
    """The process that serves the records is gone."""


class HttpSource:
    """The training split of a data set, served by a process that ends with this one.

    Args:
        dataset: the fields config.dataset.
        arrived: is called as each record arrives.
        where: how a sentence names a record, see `sources.where`.

    Attributes:
        server: the process.

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
        self.server = _started(dataset)
        weakref.finalize(self, _end, self.server)
        self._port, self._length = _hello(self.server.stdout.readline())
        self._idle: queue.SimpleQueue = queue.SimpleQueue()  # connections that are kept open

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        connection = self._connection()
        try:
            connection.request("POST", "/", json.dumps([int(index) for index in indices]))
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise UpstreamError(
                    f"the HTTP upstream answers {response.status}: {_one_line(response.read())}"
                )
            records = [self._record(response, index) for index in indices]
            response.read()  # what ends the answer; only then can the connection be used again
        except (OSError, http.client.HTTPException) as error:
            raise ServerLost(
                f"the HTTP upstream on port {self._port} is gone ({reason(error)}) "
                f"while record {indices[0]} and {len(indices) - 1} others were read; "
                "start the run again to go on"
            ) from error
        self._idle.put(connection)
        return records

    def _connection(self) -> http.client.HTTPConnection:
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        return http.client.HTTPConnection("127.0.0.1", self._port)

    def _record(self, response: http.client.HTTPResponse, index: int) -> dict[str, Any]:
        length = int.from_bytes(_read(response, LENGTH_BYTES), "big")
        content = _read(response, length)
        try:
            record = serialization.msgpack_restore(content)
        except Exception as error:  # msgpack and its extensions have no common one
            raise UpstreamError(
                f"the HTTP upstream on port {self._port} answers with what is no record "
                f"({reason(error)}) while {self.where(index)} was read; start the run again"
            ) from error
        if not isinstance(record, dict):
            raise UpstreamError(
                f"the HTTP upstream on port {self._port} answers with {type(record).__name__}, "
                f"which is no record, while {self.where(index)} was read; start the run again"
            )
        self._arrived()
        return record


def _hello(line: bytes) -> tuple[int, int]:
    """Port and number of records, from the first line that a server writes."""
    try:
        hello = json.loads(line or '{"error": "its process ended"}')
        if "error" not in hello:
            return int(hello["port"]), int(hello["length"])
        why = hello["error"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"it answers {line[:_DISPLAYED_BYTES]!r} ({reason(error)})"
    raise SourceError(f"the HTTP upstream cannot serve the training split: {why}")


def _one_line(content: bytes) -> str:
    return " ".join(content.decode(errors="replace").split())


def _read(response: http.client.HTTPResponse, length: int) -> bytes:
    content = response.read(length)
    if len(content) < length:
        raise http.client.IncompleteRead(content, length - len(content))
    return content


def _started(dataset: dict[str, Any]) -> subprocess.Popen:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    server = subprocess.Popen(
        [sys.executable, "-m", "data.http_server"],
        stdin=subprocess.PIPE,  # which closes when this process ends, however it does
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
    )
    with contextlib.suppress(BrokenPipeError):  # then it says nothing, which is looked at next
        server.stdin.write(json.dumps(dataset).encode() + b"\n")
        server.stdin.flush()
    return server


def _end(server: subprocess.Popen) -> None:
    server.kill()
    server.communicate()
