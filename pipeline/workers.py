"""Worker processes that read, decode, and augment: Python threads share one interpreter's lock.

A thread of the reader allocates a batch in shared memory, asks for its chunks, and waits for all of
them without the lock; workers compute them in order and write their rows. `stacked_items` stays a
pure function of its indices, so batches, counts, and states are those of threads, bit for bit.

The memory has no name: it is a file in RAM that only these processes hold open, so nothing of it is
left however they end, and a container's small /dev/shm does not matter.
"""

import collections
import contextlib
import math
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

WORKER_CHUNK = 64  # examples that a worker computes at a time

_ALIGNED = 64  # bytes, as XLA asks for to use an array in place
_MIN_BLOCK = 2**16
_ERROR_BYTES = 2**14  # of a block, for the error of each chunk; memory only if there is one
_MESSAGE_BYTES = 2**16
_END_SECONDS = 2.0

# A worker has no accelerator, and one thread: the others are on the other cores.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}

_REPLY = struct.Struct("<i")  # the number of a chunk; its complement if there was an error

# (name, dtype, shape, first byte in a block) of each array
Layout = list[tuple[str, str, tuple[int, ...], int]]


class WorkerError(RuntimeError):
    """A worker process ended by itself."""


class Workers:
    """Processes that compute `make(key).stacked_items(indices)`.

    Args:
        make: called in each worker with a key, makes the examples of a stream; picklable.
        count: worker processes, which start here and end with this process.
    """

    def __init__(self, make: Callable[[Any], Any], count: int):
        self._file = _memory()
        self._lock = threading.Lock()
        # Blocks of the file that no array is in, (first byte, memory), by size, a power of two. A
        # block takes memory when it is first written to, so the last one used is used first.
        self._free: dict[int, list[tuple[int, mmap.mmap]]] = collections.defaultdict(list)
        program = pickle.dumps(make)
        self._size = _power_of_two(len(program))  # of the file
        os.ftruncate(self._file, self._size)
        os.pwrite(self._file, program, 0)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            inherited = theirs.fileno(), self._file
            command = [sys.executable, "-m", __name__, *map(str, (*inherited, len(program)))]
            environment = os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)}
            self._processes = [
                subprocess.Popen(
                    command, env=environment, pass_fds=inherited, stdin=subprocess.DEVNULL
                )
                for _ in range(count)
            ]
        weakref.finalize(self, _end, self._requests, self._processes, self._file)

    def stacked_items(
        self, key: Any, indices: Sequence[int], like: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The examples `indices` of the stream `key`, in shared memory.

        Args:
            like: any of its examples, each array [1, ...].

        Raises:
            Exception: what the worker raised.
            WorkerError: it was killed.
        """
        layout, size = _arranged(like, len(indices))
        starts = range(0, len(indices), WORKER_CHUNK)
        offset, memory = self._allocate(size + len(starts) * _ERROR_BYTES)
        replies = self._ask(key, indices, starts, (offset, len(memory), layout, size))
        block = np.frombuffer(memory, np.uint8)
        free = self._free[len(memory)]
        weakref.finalize(block, free.append, (offset, memory)).atexit = False
        failed = [~number for (number,) in _REPLY.iter_unpack(replies) if number < 0]
        if failed:
            start = size + min(failed) * _ERROR_BYTES
            raise pickle.loads(block[start : start + _ERROR_BYTES].tobytes())
        return _views(block, layout)

    def _ask(self, key: Any, indices: Sequence[int], starts: range, place: Any) -> bytes:
        """Asks for chunks, and waits for the replies to all."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for number, start in enumerate(starts):
                    chunk = indices[start : start + WORKER_CHUNK]
                    request = [pickle.dumps((number, start, key, chunk, place))]
                    socket.send_fds(self._requests, request, [theirs.fileno()])
            # The worker that computes a chunk holds the other end, which its death closes.
            expected = len(starts) * _REPLY.size
            replies = ours.recv(expected, socket.MSG_WAITALL)
            if len(replies) < expected:
                raise WorkerError(_ended(self._processes))
        return replies

    def _allocate(self, size: int) -> tuple[int, mmap.mmap]:
        size = _power_of_two(size)
        with contextlib.suppress(IndexError):
            return self._free[size].pop()
        with self._lock:
            offset, self._size = self._size, self._size + size
            os.ftruncate(self._file, self._size)
        return offset, mmap.mmap(self._file, size, offset=offset)


def _ended(processes: Sequence[subprocess.Popen]) -> str:
    deadline = time.monotonic() + _END_SECONDS
    while not any(codes := [process.poll() for process in processes]):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    names = {signal.Signals(-c).name if c < 0 else f"exit code {c}" for c in codes if c}
    how = f" ({', '.join(sorted(names))})" if names else ""
    return f"a worker process ended{how}; if the memory was full, use fewer: config.loader.workers"


def _arranged(like: dict[str, np.ndarray], n: int) -> tuple[Layout, int]:
    """Where arrays of n examples are in a block, and the bytes that they take."""
    layout, size = [], 0
    for name, array in like.items():
        layout.append((name, array.dtype.str, (n, *array.shape[1:]), size))
        size += -(-array[0].nbytes * n // _ALIGNED) * _ALIGNED
    return layout, size


def _views(block: np.ndarray, layout: Layout) -> dict[str, np.ndarray]:
    views = {}
    for name, dtype, shape, start in layout:
        nbytes = np.dtype(dtype).itemsize * math.prod(shape)
        views[name] = block[start : start + nbytes].view(dtype).reshape(shape)
    return views


def _power_of_two(size: int) -> int:
    return 1 << max(_MIN_BLOCK, size - 1).bit_length()


def _memory() -> int:
    """A file in RAM without a name, or, where there is none, an unlinked one on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("echo")
    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file


def _end(requests: socket.socket, processes: Sequence[subprocess.Popen], file: int) -> None:
    requests.close()  # a worker ends when it has computed what it was asked for
    deadline = time.monotonic() + _END_SECONDS
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    os.close(file)


def _serve(requests: socket.socket, file: int, program_bytes: int) -> None:
    """Answers requests until the other end is closed, as it is when that process is killed."""
    make, streams = pickle.loads(os.pread(file, program_bytes, 0)), {}
    blocks: dict[int, np.ndarray] = {}  # by first byte
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 1)
        if not message:
            return
        number, start, key, indices, (offset, size, layout, end) = pickle.loads(message)
        if offset not in blocks:
            blocks[offset] = np.frombuffer(mmap.mmap(file, size, offset=offset), np.uint8)
        with socket.socket(fileno=descriptors[0]) as caller:
            reply = number
            try:
                if key not in streams:
                    streams[key] = make(key)
                arrays = streams[key].stacked_items(indices)
                views = _views(blocks[offset], layout)
                rows = {name: view[start : start + len(indices)] for name, view in views.items()}
                _write(rows, arrays)
            except Exception as error:
                reply = ~number
                text = _pickled(error)
                place = end + number * _ERROR_BYTES
                blocks[offset][place : place + len(text)] = np.frombuffer(text, np.uint8)
            with contextlib.suppress(BrokenPipeError):  # who asked was interrupted
                caller.send(_REPLY.pack(reply))


def _write(rows: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
    wanted, given = (
        {name: (x.dtype, x.shape) for name, x in each.items()} for each in (rows, arrays)
    )
    if given != wanted:
        raise ValueError(
            f"examples came as {given} instead of {wanted}; return arrays of the same names, "
            "dtypes, and shapes for all"
        )
    for name, array in arrays.items():
        np.copyto(rows[name], array)


def _pickled(error: Exception) -> bytes:
    with contextlib.suppress(Exception):
        text = pickle.dumps(error)
        pickle.loads(text)  # some errors cannot be made again
        if len(text) <= _ERROR_BYTES:
            return text
    return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"[: _ERROR_BYTES // 8]))


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # for the process that reads; this one follows
        signal.signal(number, signal.SIG_IGN)
    pipe, file, program_bytes = map(int, sys.argv[1:])
    threading.current_thread().name = "worker"
    with contextlib.suppress(ConnectionResetError):
        _serve(socket.socket(fileno=pipe), file, program_bytes)
    os._exit(0)  # no thread of a decoder may keep it


if __name__ == "__main__":
    from pipeline import workers  # its classes must be those that the other process pickles

    workers.main()
