"""Python processes that start in milliseconds: forked from one that has imported everything.

Each process of pytest starts one server, which forks what `start` asks for. That ends as any
program does, with its own exit code, signals, and threads. Forking is safe because nothing there
has started a thread of Python or a backend of JAX; OpenBLAS and jemalloc are prepared for a fork.

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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from concurrent import futures
from typing import Any

IMPORTED = ("train", "sweep", "advise", "analysis.__main__", "tests.helpers.runs")
READ_LATER = {
    *("JAX_PLATFORMS", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    "PYTHONFAULTHANDLER",
}
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_STREAMS = ("stdin", "stdout", "stderr")
_PIPES: Any = dict.fromkeys(_STREAMS, subprocess.PIPE)
_READERS = futures.ThreadPoolExecutor()


class Forked:
    """A process; `stdin`, `stdout` and `stderr` are pipes, in text."""

    def __init__(self, words: list[str], environment: dict[str, str]):
        self.args, self.returncode = words, None
        self._directory = pathlib.Path(tempfile.mkdtemp())
        for name in _STREAMS:
            os.mkfifo(self._directory / name)
        print(json.dumps([words, environment, str(self._directory)]), file=_server().stdin)
        self.pid = int(_server().stdout.readline())
        self.stdin, self.stdout, self.stderr = (
            (self._directory / name).open(mode) for name, mode in zip(_STREAMS, "wrr", strict=True)
        )
        self._printed: list[futures.Future[str]] = []

    def poll(self) -> int | None:
        if self.returncode is None and (code := self._directory / "code").exists():
            self.returncode = int(code.read_text())
            shutil.rmtree(self._directory)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout or float("inf"))
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """Closes standard input, and waits for the end; what is left of output and error."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self._printed = self._printed or [
            _READERS.submit(lambda file=file: "" if file.closed else file.read())
            for file in (self.stdout, self.stderr)
        ]
        if futures.wait(self._printed, timeout).not_done:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        for file in (self.stdout, self.stderr):
            file.close()
        output, error = (printed.result() for printed in self._printed)
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
    finally:
        process.kill()
    return subprocess.CompletedProcess(words, process.returncode, output, error)


@functools.cache
def _server() -> Any:
    """The server of this process, which ends when its standard input does."""
    words = [sys.executable, "-m", "tests.helpers.forked"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(words, cwd=_ROOT, text=True, bufsize=1, **pipes)


def _serve() -> list[Any] | None:
    """Forks a process for each request, in which it returns the request; None at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's, which pytest handles
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := sys.stdin.readline():
        if os.fork():
            continue
        # A process that waits for the one asked for, and writes its exit code.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        *request, directory = json.loads(line)
        if pid := os.fork():
            print(pid, flush=True)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            written = pathlib.Path(directory, "written")
            written.write_text(str(code))
            written.rename(written.with_name("code"))
            os._exit(0)
        for number, name in enumerate(_STREAMS):
            descriptor = os.open(f"{directory}/{name}", os.O_WRONLY if number else os.O_RDONLY)
            os.dup2(descriptor, number)
            os.close(descriptor)
        return request
    return None


def _become(words: list[str], environment: dict[str, str]) -> None:
    """Makes this process what `python *words` is after its imports, and runs it."""
    before, platforms = os.environ.get("JAX_PLATFORMS"), environment.get("JAX_PLATFORMS")
    os.environ.clear()
    os.environ.update(environment)
    if platforms != before:
        importlib.import_module("jax").config.update("jax_platforms", platforms)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
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


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if request := _serve():
        _become(*request)
