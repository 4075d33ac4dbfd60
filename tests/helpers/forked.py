"""Python processes that start in milliseconds: forked from one that has imported everything.

`start` takes what one would give to Python, and returns a process with methods of
`subprocess.Popen`. It is forked from a server, which each process of pytest starts once, and ends
as any program does, with its own exit code, signals, and threads. Forking is safe because nothing
has started a thread of Python there, or a backend of JAX; the threads of OpenBLAS and of jemalloc
are prepared for a fork.

A test of the imports themselves, or of a variable that JAX reads while it is imported, starts
Python instead.
"""

import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import pathlib
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from typing import Any

IMPORTED = ("train", "sweep", "advise", "analysis.__main__", "tests.helpers.runs")
READ_LATER = {
    *("JAX_PLATFORMS", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    "PYTHONFAULTHANDLER",
}
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PIPES: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


class Forked:
    """A process; pipes, in text, for standard input, output and error.

    Attributes:
        args: the words after "python".
        pid, returncode, stdin, stdout, stderr: as of `subprocess.Popen`.
    """

    def __init__(self, words: list[str], environment: dict[str, str]):
        self.args, self.returncode = words, None
        self._readers: dict[Any, tuple[threading.Thread, list[str]]] = {}
        theirs_in, ours_in = os.pipe()
        (ours_out, theirs_out), (ours_error, theirs_error) = os.pipe(), os.pipe()
        ours_status, theirs_status = os.pipe()
        theirs = (theirs_in, theirs_out, theirs_error, theirs_status)
        request = json.dumps({"words": words, "environment": environment}).encode()
        header = len(request).to_bytes(8, "big")
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(_server().connection, [header], theirs)
            _server().connection.sendall(request)
        for descriptor in theirs:
            os.close(descriptor)
        self.stdin: Any = os.fdopen(ours_in, "w")
        self.stdout: Any = os.fdopen(ours_out)
        self.stderr: Any = os.fdopen(ours_error)
        self._status = os.fdopen(ours_status)
        if not (told := self._status.readline()):
            raise RuntimeError(f"the server has ended: {_server().stderr.read()}")
        self.pid = int(told)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """Closes standard input, and waits for the end; what is left of output and error."""
        if self.stdin and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        for file in (self.stdout, self.stderr):
            if file and not file.closed and file not in self._readers:
                parts: list[str] = []
                reader = threading.Thread(
                    target=lambda parts=parts, file=file: parts.append(file.read()), daemon=True
                )
                self._readers[file] = (reader, parts)
                reader.start()
        for reader, _ in self._readers.values():
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        for file in self._readers:
            file.close()
        found = ("".join(self._readers.get(f, (None, ()))[1]) for f in (self.stdout, self.stderr))
        output, error = found
        return output, error

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends just now, as in `Popen`
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(words: list[str], environment: dict[str, str]) -> Any:
    """Starts what `python *words` would, in the directory of the repository. Raises ValueError for
    variables that Python or JAX has read in the server."""
    if not sys.platform.startswith("linux"):  # elsewhere, system libraries may not survive a fork
        return subprocess.Popen(
            [sys.executable, *words], cwd=_ROOT, env=environment, text=True, **_PIPES
        )
    for name in {*os.environ, *environment}:
        read = name.startswith(("JAX_", "PYTHON")) and name not in READ_LATER
        if read and os.environ.get(name) != environment.get(name):
            raise ValueError(f"{name} would have no effect")
    return Forked(words, environment)


def run(words: list[str], environment: dict[str, str], timeout: float):
    """Does `start` and waits for the end; a process that takes too long is killed."""
    process = start(words, environment)
    try:
        output, error = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        raise
    return subprocess.CompletedProcess(words, process.wait(), output, error)


class _Server(subprocess.Popen):
    """The server of this process, which ends when their connection does.

    Its standard streams are pipes, as those of all that it forks are: Python looks at their kind
    when it starts.
    """

    def __init__(self):
        self.connection, theirs = socket.socketpair()
        words = [sys.executable, "-m", "tests.helpers.forked", str(theirs.fileno())]
        super().__init__(words, cwd=_ROOT, pass_fds=[theirs.fileno()], text=True, **_PIPES)
        theirs.close()


_server = functools.cache(_Server)


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Forks a process for each request, in which it returns the request; None at the end."""
    waker, woken = socket.socketpair()
    for end in (waker, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's, which pytest handles
    children: dict[int, int] = {}  # descriptors that take the exit codes
    while True:
        ready, _, _ = select.select([connection, woken], [], [])
        if woken in ready:
            woken.recv(1024)
            for pid in [*children]:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    _tell(children.pop(pid), os.waitstatus_to_exitcode(status), last=True)
        if connection not in ready:
            continue
        header, descriptors, _, _ = socket.recv_fds(connection, 8, 4)
        if not header:
            return None
        text = connection.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL)
        *streams, told = descriptors
        if pid := os.fork():
            for descriptor in streams:
                os.close(descriptor)
            children[pid] = told
            _tell(told, pid)
            continue
        signal.set_wakeup_fd(-1)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        for descriptor in (*descriptors, *children.values()):
            os.close(descriptor)
        for end in (waker, woken, connection):
            end.close()
        return json.loads(text)


def _tell(descriptor: int, number: int, last: bool = False) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(descriptor, f"{number}\n".encode())
    if last:
        os.close(descriptor)


def _become(words: list[str], environment: dict[str, str]) -> None:
    """Makes this process what `python *words` is after its imports, and runs it."""
    before, platforms = os.environ.get("JAX_PLATFORMS"), environment.get("JAX_PLATFORMS")
    os.environ.clear()
    os.environ.update(environment)
    if platforms != before:
        importlib.import_module("jax").config.update("jax_platforms", platforms)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    option, *rest = words
    if option == "-c":
        sys.argv = ["-c", *rest[1:]]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    elif option == "-m":
        sys.argv = ["-m", *rest[1:]]
        for name in (rest[0], f"{rest[0]}.__main__"):  # which runs as if it was not imported
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(option, run_name="__main__")


def _main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        _become(**request)


if __name__ == "__main__":
    _main()
