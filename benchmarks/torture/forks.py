"""Processes that start in milliseconds: forked from one that has imported everything.

A fork is safe as long as JAX has no backend, which `fork` checks: its threads and locks would not
survive.
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

HANGS = 600.0  # seconds after which something hangs: far more than it takes on a busy machine
DATA_BYTES = 12 * 2**30  # memory of a forked process, so that absurd sizes end it and nothing else
_LOOK_SECONDS = 0.01


class Hangs(Exception):
    """A process has not ended in time; it has been killed, with all that it started."""


@dataclasses.dataclass
class Process:
    """A forked process, leader of a group of its own.

    Attributes:
        pid: its number, and its group's.
        output: the file that standard output and error go to.
        code: how it ended, as `subprocess` says it: the negative number of the signal that killed
            it; None before.
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
        """Waits until the process has ended or `until()`; its code, if it has ended.

        Raises:
            Hangs: neither came about.
        """
        deadline = time.monotonic() + HANGS
        while not (self.ended() or until()):
            if time.monotonic() > deadline:
                self.end_group()
                raise Hangs
            time.sleep(_LOOK_SECONDS)
        return self.code

    def end_group(self) -> None:
        """Kills it and what is left of all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        while not self.ended():
            time.sleep(_LOOK_SECONDS)


def fork(act: Callable[[], int | None], output: pathlib.Path) -> Process:
    """Calls `act` in a new process, which ends with the code that it returns."""
    if xla_bridge.backends_are_initialized():
        raise RuntimeError("JAX has a backend in this process, which a fork would break")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # here as well: a signal to the group may be sent at once
        return Process(pid, output)
    code = 1
    try:
        gc.freeze()  # so that collecting garbage does not look through all that was imported
        os.setpgid(0, 0)
        file = os.open(output, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((nowhere, file, file)):
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
    """What `act()` returns (JSON), from a forked process."""
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
    """What is written to standard output and error in here, by whatever means, can be asked for."""
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
    """Each case with what `attempt(case)` returns (JSON), many in one forked process.

    A process that dies or hangs in a case ends that case alone: `{"died": SENTENCE}` or
    `{"hangs": True}`. Another one takes those that are left.
    """
    left = list(cases)
    while left:
        group = left[:size]
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
            yield group[done], ending or {"died": f"with {process.code}: {''.join(last)}"}
            done += 1
        left = left[done:]


def _attempts(cases: Sequence[Any], attempt: Callable, writer: int) -> None:
    for case in cases:
        line = json.dumps(attempt(case)).encode() + b"\n"
        while line:
            line = line[os.write(writer, line) :]


def _lines(file: Any) -> Iterator[Any]:
    """JSON values, one a line, as they come; None once nothing has come for too long."""
    text = b""
    while True:
        ready, _, _ = select.select([file], [], [], HANGS)
        if not ready:
            yield None
            return
        piece = file.read(1 << 16)
        if not piece:
            return
        text += piece
        *lines, text = text.split(b"\n")
        yield from map(json.loads, lines)
