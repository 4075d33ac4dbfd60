"""Worker processes that read, decode, and augment: Python threads share one interpreter's lock.

A thread of the reader allocates a batch in shared memory, asks for its chunks, and waits for all of
them without the lock; workers compute them in order and write their rows. `stacked_items` stays a
pure function of its indices, so batches, counts, and states are those of threads, bit for bit.

The memory has no name: it is a file in RAM that only these processes hold open, so nothing of it is
left however they end, and a container's small /dev/shm does not matter.
"""

import collections
import contextlib
import functools
import math
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from runs.signals import STOPS

# Examples that a worker decodes at a time, and those that it only augments, for which a loop waits.
WORKER_CHUNK, STORED_CHUNK = 64, 32

AVAILABLE = hasattr(os, "memfd_create")  # on Linux

_ALIGNED = 64  # bytes, as XLA asks for to use an array in place
_MIN_BLOCK = 2**16
_ERROR_BYTES = 2**14  # before the arrays, for the error of each chunk; memory only if there is one
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


class Place(NamedTuple):
    """Where arrays are: a block of the file, and (name, dtype, shape, first byte there) of each."""

    offset: int
    size: int
    arrays: list[tuple[str, str, tuple[int, ...], int]]


class WorkerError(RuntimeError):
    """A worker process ended by itself."""


class Workers:
    """Processes that compute `make(key).stacked_items(indices)`.

    Args:
        make: called in each worker with a key, makes the examples of a stream; picklable.
        count: worker processes, which start here and end with this process.
    """

    def __init__(self, make: Callable[[Any], Any], count: int):
        self._file = os.memfd_create("echo")
        self._lock = threading.Lock()
        # Blocks of the file that no array is in, (first byte, memory), by size, a power of two. A
        # block takes memory when it is first written to, so the last one used is used first.
        self._free: dict[int, list[tuple[int, mmap.mmap]]] = collections.defaultdict(list)
        program = pickle.dumps(make)
        self._size = -(-len(program) // _MIN_BLOCK) * _MIN_BLOCK  # of the file
        os.ftruncate(self._file, self._size)
        os.pwrite(self._file, program, 0)
        # Requests that a loop waits for, which go first, and those that are read ahead.
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self._urgent, self._ahead = (ours for ours, _ in pairs)
        with pairs[0][1] as urgent, pairs[1][1] as ahead:
            inherited = urgent.fileno(), ahead.fileno(), self._file
            command = [sys.executable, "-m", __name__, *map(str, (*inherited, len(program)))]
            environment = os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)}
            self._processes = [
                subprocess.Popen(
                    command, env=environment, pass_fds=inherited, stdin=subprocess.DEVNULL
                )
                for _ in range(count)
            ]
        ours = self._urgent, self._ahead
        weakref.finalize(self, _end, ours, self._processes, self._file)

    def stacked_items(
        self,
        key: Any,
        indices: Sequence[int] | np.ndarray,
        like: dict[str, np.ndarray],
        stored: Place | None = None,
    ) -> dict[str, np.ndarray]:
        """The examples `indices` of the stream `key`, in shared memory.

        Args:
            like: any of its examples, each array [1, ...].
            stored: where examples are that the stream only augments. Then `indices` (int64 [n, 3])
                has the row there, the fresh example, and the copy of each.

        Raises:
            Exception: what the worker raised.
            WorkerError: it was killed.
        """
        starts = range(0, len(indices), STORED_CHUNK if stored else WORKER_CHUNK)
        place, arrays, released = self.empty(like, len(indices), len(starts) * _ERROR_BYTES)
        try:
            replies = self._ask(key, indices, starts, place, stored)
        except BaseException:
            released.detach()  # a worker may still write there
            raise
        failed = [~number for (number,) in _REPLY.iter_unpack(replies) if number < 0]
        if failed:
            start = place.offset + min(failed) * _ERROR_BYTES
            raise pickle.loads(os.pread(self._file, _ERROR_BYTES, start))
        return arrays

    def empty(
        self, like: dict[str, np.ndarray], n: int, before: int = 0
    ) -> tuple[Place, dict[str, np.ndarray], weakref.finalize]:
        """Shared memory for `n` examples, some bytes before them, and what releases it as soon as
        no array is in use."""
        layout, end = [], before
        for name, array in like.items():
            layout.append((name, array.dtype.str, (n, *array.shape[1:]), end))
            end += -(-n * array[0].nbytes // _ALIGNED) * _ALIGNED
        size = 1 << (max(_MIN_BLOCK, end) - 1).bit_length()
        free = self._free[size]
        try:
            offset, memory = free.pop()
        except IndexError:
            with self._lock:
                offset, self._size = self._size, self._size + size
                os.ftruncate(self._file, self._size)
            memory = mmap.mmap(self._file, size, offset=offset)
        block, place = np.frombuffer(memory, np.uint8), Place(offset, size, layout)
        released = weakref.finalize(block, free.append, (offset, memory))
        released.atexit = False
        return place, _views(block, place), released

    def _ask(self, key: Any, indices: Any, starts: range, *places: Place | None) -> bytes:
        """Asks for chunks, and waits for the replies to all."""
        requests = self._urgent if places[-1] else self._ahead
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for number, start in enumerate(starts):
                    chunk = indices[start : start + starts.step]
                    request = [pickle.dumps((number, start, key, chunk, *places))]
                    socket.send_fds(requests, request, [theirs.fileno()])
            # The worker that computes a chunk holds the other end, which its death closes.
            replies, expected = b"", len(starts) * _REPLY.size
            while missing := expected - len(replies):
                more = ours.recv(missing, socket.MSG_WAITALL)  # a signal ends it early
                if not more:
                    raise WorkerError(_ended(self._processes))
                replies += more
        return replies


def _ended(processes: Sequence[subprocess.Popen]) -> str:
    deadline = time.monotonic() + _END_SECONDS
    while not any(codes := [process.poll() for process in processes]):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    names = {signal.Signals(-c).name if c < 0 else f"exit code {c}" for c in codes if c}
    how = f" ({', '.join(sorted(names))})" if names else ""
    return f"a worker process ended{how}; if the memory was full, use fewer: config.loader.workers"


def _views(block: np.ndarray, place: Place) -> dict[str, np.ndarray]:
    views = {}
    for name, dtype, shape, start in place.arrays:
        nbytes = np.dtype(dtype).itemsize * math.prod(shape)
        views[name] = block[start : start + nbytes].view(dtype).reshape(shape)
    return views


def _end(
    sockets: Sequence[socket.socket], processes: Sequence[subprocess.Popen], file: int
) -> None:
    for ours in sockets:
        ours.close()  # a worker ends when it has computed what it was asked for
    deadline = time.monotonic() + _END_SECONDS
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    os.close(file)


def _serve(sockets: Sequence[socket.socket], file: int, program_bytes: int) -> None:
    """Answers requests, those of the first socket first, until the other ends are closed, as they
    are when that process is killed."""
    make = pickle.loads(os.pread(file, program_bytes, 0))
    stream = functools.cache(make)

    @functools.cache
    def block(offset: int, size: int) -> np.ndarray:
        return np.frombuffer(mmap.mmap(file, size, offset=offset), np.uint8)

    poll = select.poll()  # which, unlike select, takes descriptors of any number
    for ours in sockets:
        poll.register(ours, select.POLLIN)
    while True:
        ready = {number for number, _ in poll.poll()}
        requests = next(x for x in sockets if x.fileno() in ready)
        try:
            given = socket.recv_fds(requests, _MESSAGE_BYTES, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:  # another worker was first
            continue
        message, descriptors, _, _ = given
        if not message:
            return
        number, start, key, indices, place, stored = pickle.loads(message)
        reply = number
        with socket.socket(fileno=descriptors[0]) as caller:
            try:
                if stored is None:
                    arrays = stream(key).stacked_items(indices)
                else:
                    row_n, index_n, copy_n = indices.T
                    views = _views(block(*stored[:2]), stored)
                    rows = {name: view[row_n] for name, view in views.items()}
                    arrays = stream(key).augmented(rows, index_n, copy_n)
                part = slice(start, start + len(indices))
                views = _views(block(*place[:2]), place)
                _write({name: view[part] for name, view in views.items()}, arrays)
            except Exception as error:
                reply = ~number
                os.pwrite(file, _pickled(error), place.offset + number * _ERROR_BYTES)
            with contextlib.suppress(BrokenPipeError):  # who asked was interrupted
                caller.send(_REPLY.pack(reply))


def _write(rows: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
    wanted, given = ({k: (x.dtype, x.shape) for k, x in some.items()} for some in (rows, arrays))
    if given != wanted:
        raise ValueError(
            f"examples came as {given} instead of {wanted}; return arrays of the same names, "
            "dtypes, and shapes for all"
        )
    for name, array in arrays.items():
        rows[name][...] = array


def _pickled(error: Exception) -> bytes:
    with contextlib.suppress(Exception):
        text = pickle.dumps(error)
        pickle.loads(text)  # some errors cannot be made again
        if len(text) <= _ERROR_BYTES:
            return text
    return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"[: _ERROR_BYTES // 8]))


def main() -> None:
    # What reaches a whole job is for the process that reads; this one follows it.
    for number in (signal.SIGINT, signal.SIGHUP, *STOPS):
        signal.signal(number, signal.SIG_IGN)
    urgent, ahead, file, program_bytes = map(int, sys.argv[1:])
    threading.current_thread().name = "worker"
    with contextlib.suppress(ConnectionResetError):
        sockets = [socket.socket(fileno=number) for number in (urgent, ahead)]
        _serve(sockets, file, program_bytes)
    os._exit(0)  # no thread of a decoder may keep it


if __name__ == "__main__":
    from pipeline import workers  # its classes must be those that the other process pickles

    workers.main()
