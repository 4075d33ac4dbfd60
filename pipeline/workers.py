"""Worker processes that read, decode, and augment: Python threads share one interpreter's lock.

A thread of the reader hands a worker the indices of a chunk, waits for it without the lock, and
gets arrays in shared memory. `stacked_items` stays a pure function of its indices, so batches,
counts, and states are those of threads, bit for bit.

The memory has no name: it is a file in RAM that only these processes hold open, so nothing of it is
left however they end, and a container's small /dev/shm does not matter.
"""

import collections
import contextlib
import mmap
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

# A slot holds the arrays of one chunk; larger ones are sent through the pipe. Slots are taken from
# the system when they are first written to, so those that have been are used first.
SLOT_BYTES, SLOTS = 2**25, 128
_ALIGNED = 64  # bytes, as XLA asks for to use an array in place

# A worker has no accelerator, and one thread: the others are on the other cores.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


class WorkerError(RuntimeError):
    """A worker process ended by itself."""


class Workers:
    """Processes that compute `make(key).stacked_items(indices)`.

    Args:
        make: called in each worker with a key, makes the examples of a stream; picklable.
        count: worker processes, which start here and end with this process.
        slots: chunks whose arrays can be in use at a time; those of others are copied.
    """

    def __init__(self, make: Callable[[Any], Any], count: int, slots: int = SLOTS):
        self._file = _memory(slots * SLOT_BYTES)
        self._memory = mmap.mmap(self._file, slots * SLOT_BYTES)
        self._slots = collections.deque(range(slots))  # those that are free
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers = [_Worker(make, self._file, slots * SLOT_BYTES) for _ in range(count)]
        for worker in self._workers:
            self._idle.put(worker)
        weakref.finalize(self, _end, self._workers, self._file)

    def stacked_items(self, key: Any, indices: Sequence[int]) -> dict[str, np.ndarray]:
        """The examples `indices` of the stream `key`.

        Raises:
            Exception: what the worker raised.
            WorkerError: it was killed.
        """
        slot = None
        with contextlib.suppress(IndexError):
            slot = self._slots.pop()
        worker = self._idle.get()
        try:
            reply = worker.ask((key, slot, np.asarray(indices, np.int64)))
        except BaseException:
            # A reply may still come, which would be taken for that of the next request.
            worker.connection.close()
            self._idle.put(worker)  # the next one who asks it learns that it has ended
            raise
        self._idle.put(worker)
        if slot is None or not isinstance(reply, _Layout):
            if slot is not None:
                self._slots.append(slot)
            if isinstance(reply, BaseException):
                raise reply
            return reply
        block = np.frombuffer(self._memory, np.uint8, reply.size, slot * SLOT_BYTES)
        weakref.finalize(block, self._slots.append, slot).atexit = False
        return {
            name: block[start : start + nbytes].view(dtype).reshape(shape)
            for name, dtype, shape, start, nbytes in reply.arrays
        }


class _Layout:
    """Where arrays are in a slot: (name, dtype, shape, first byte, bytes) of each."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays, self.size = [], 0
        for name, array in arrays.items():
            start = -(-self.size // _ALIGNED) * _ALIGNED
            self.arrays.append((name, array.dtype.str, array.shape, start, array.nbytes))
            self.size = start + array.nbytes


class _Worker:
    def __init__(self, make: Callable[[Any], Any], file: int, size: int):
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(file), str(size)]
            self.process = subprocess.Popen(
                command,
                env=os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=(theirs.fileno(), file),
                stdin=subprocess.DEVNULL,
            )
        self.connection = Connection(ours.detach())
        self.connection.send_bytes(pickle.dumps(make))

    def ask(self, request: tuple[Any, ...]) -> Any:
        try:
            self.connection.send(request)
            return self.connection.recv()
        except (EOFError, OSError) as error:
            code = self.process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise WorkerError(
                f"a worker process ended ({how}); if the memory was full, use fewer: "
                "config.loader.workers"
            ) from error


def _memory(size: int) -> int:
    """A file in RAM without a name, or, where there is none, an unlinked one on disk."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("echo")
    else:
        file, path = tempfile.mkstemp()
        os.unlink(path)
    os.ftruncate(file, size)
    return file


def _end(workers: Sequence[_Worker], file: int) -> None:
    for worker in workers:
        worker.connection.close()  # it ends when it has computed what it is computing
    for worker in workers:
        try:
            worker.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
    os.close(file)


def _serve(connection: Connection, memory: mmap.mmap) -> None:
    """Answers requests until the other end is closed, as it is when that process is killed."""
    make, streams = pickle.loads(connection.recv_bytes()), {}
    while True:
        key, slot, indices = connection.recv()
        try:
            if key not in streams:
                streams[key] = make(key)
            reply = arrays = streams[key].stacked_items(indices)
            layout = _Layout(arrays)
            if slot is not None and layout.size <= SLOT_BYTES:
                for name, dtype, shape, start, nbytes in layout.arrays:
                    place = np.frombuffer(memory, np.uint8, nbytes, slot * SLOT_BYTES + start)
                    np.copyto(place.view(dtype).reshape(shape), arrays[name])
                reply = layout
        except Exception as error:
            reply = error
        try:
            message = pickle.dumps(reply)
            pickle.loads(message)  # some errors cannot be made again
        except Exception:
            message = pickle.dumps(RuntimeError(f"{type(reply).__name__}: {reply}"))
        connection.send_bytes(message)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # for the process that reads; this one follows
        signal.signal(number, signal.SIG_IGN)
    pipe, file, size = map(int, sys.argv[1:])
    threading.current_thread().name = "worker"
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(Connection(pipe), mmap.mmap(file, size))
    os._exit(0)  # no thread of a decoder may keep it


if __name__ == "__main__":
    from pipeline import workers  # its classes must be those that the other process pickles

    workers.main()
