"""Processes that start in milliseconds, because they are forked after all imports.

Forking is safe until JAX initializes a backend, whose threads and locks would not survive; `fork`
checks this.
"""

import contextlib
import dataclasses
import gc
import json
import os
import pathlib
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax._src import xla_bridge

from runs import signals

TIMEOUT_SECONDS = 600.0  # far longer than any case takes on a busy machine
DATA_BYTES = 12 * 2**30  # memory limit of a forked process, so that absurd sizes end only it
_POLL_SECONDS = 0.01


class ProcessTimeout(Exception):
    """A process did not end in time and was killed with its descendants."""


@dataclasses.dataclass
class Process:
    """A forked process that leads its own process group.

    Attributes:
        pid: ID of the process and of its group.
        output: file that receives standard output and error.
        code: exit code, or the negative number of the signal that killed it, as in `subprocess`;
            None while it runs.
    """

    pid: int
    output: pathlib.Path
    code: int | None = None

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, until: Callable[[], bool] = lambda: False) -> int | None:
        """Waits until the process has ended or `until()` is true; returns `code`.

        Raises:
            ProcessTimeout: neither happened in time.
        """
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (self.ended() or until()):
            if time.monotonic() > deadline:
                self.end_group()
                raise ProcessTimeout
            time.sleep(_POLL_SECONDS)
        return self.code

    def end_group(self) -> None:
        """Kills the process and all remaining members of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        while not self.ended():
            time.sleep(_POLL_SECONDS)


def fork(act: Callable[[], int | None], output: pathlib.Path) -> Process:
    """Calls `act` in a new process and exits with the code that `act` returns."""
    if xla_bridge.backends_are_initialized():
        raise RuntimeError("JAX has a backend in this process, which forking would break")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # in the parent too, which may signal the group at once
        return Process(pid, output)
    code = 1
    try:
        gc.freeze()  # keeps imported objects out of later collections
        os.setpgid(0, 0)
        file = os.open(output, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((null, file, file)):
            os.dup2(descriptor, number)
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        signals.install(signals.end_at_once)
        code = act() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def computed(act: Callable[[], Any], directory: pathlib.Path) -> Any:
    """Calls `act()` in a forked process; returns its JSON value."""
    answer, output = directory / "answer.json", directory / "answer.txt"
    for path in (answer, output):
        path.unlink(missing_ok=True)
    process = fork(lambda: answer.write_text(json.dumps(act())) and 0, output)
    code = process.wait()
    process.end_group()
    if code or not answer.exists():
        raise RuntimeError(f"a process ended with {process.code}: {output.read_text()[-2000:]}")
    return json.loads(answer.read_text())


@contextlib.contextmanager
def captured() -> Iterator[Callable[[], str]]:
    """Captures standard output and error at the level of file descriptors.

    Yields a function that returns the text so far.
    """
    with tempfile.TemporaryFile() as file:
        saved = [os.dup(1), os.dup(2)]
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)

            def text() -> str:
                sys.stdout.flush()
                sys.stderr.flush()
                size = os.fstat(file.fileno()).st_size
                return os.pread(file.fileno(), size, 0).decode(errors="replace")

            yield text
        finally:
            for number, descriptor in enumerate(saved, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)


def in_batches(
    cases: Sequence[Any],
    attempt: Callable[[Any], dict[str, Any]],
    directory: pathlib.Path,
    size: int,
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields every case with the JSON value of `attempt(case)`, `size` cases per forked process.

    A case that ends its process yields `{"died": SENTENCE, "code": EXIT_CODE}`, one that times
    out `{"hangs": True}`. Another process takes the remaining cases.
    """
    remaining = list(cases)
    while remaining:
        group = remaining[:size]
        reader, writer = os.pipe()
        process = fork(lambda group=group, w=writer: _attempts(group, attempt, w), directory / "o")
        os.close(writer)
        done, ending = 0, {}
        with open(reader, "rb", buffering=0) as answers:
            for answer in _lines(answers):
                if answer is None:
                    ending = {"hangs": True}
                    break
                yield group[done], answer
                done += 1
        process.end_group()
        if done < len(group):
            last = (directory / "o").read_text(errors="replace").strip().splitlines()[-1:]
            died = {"died": f"with {process.code}: {''.join(last)}", "code": process.code}
            yield group[done], ending or died
            done += 1
        remaining = remaining[done:]


def _attempts(cases: Sequence[Any], attempt: Callable, writer: int) -> None:
    for case in cases:
        line = json.dumps(attempt(case)).encode() + b"\n"
        while line:
            line = line[os.write(writer, line) :]


def _lines(file: Any) -> Iterator[Any]:
    """Yields the JSON value of each line as it arrives; None after a timeout."""
    text = b""
    while True:
        ready, _, _ = select.select([file], [], [], TIMEOUT_SECONDS)
        if not ready:
            yield None
            return
        piece = file.read(1 << 16)
        if not piece:
            return
        text += piece
        *lines, text = text.split(b"\n")
        yield from map(json.loads, lines)
