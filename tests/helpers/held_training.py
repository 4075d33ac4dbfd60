"""The command train.py, paused at a step, so that a test meets a run halfway at any speed.

    python -m tests.helpers.held_training STEP [--late=EXAMPLES:STEP] [arguments of train.py]

After STEP steps it prints "held" and waits until its standard input is closed. With --late, at most
EXAMPLES examples arrive from upstream before the run has taken that many steps, so echo.policy=auto
has to repeat.
"""

import contextlib
import sys
import threading

import train
from data import sources
from runs import cli
from training import experiment


class LateSource(sources.Source):
    """A source that provides at most `examples` examples until `arrived` is set."""

    def __init__(self, source, examples, arrived):
        self._source, self._left, self._arrived = source, examples, arrived
        self._lock = threading.Lock()

    def bytes_read(self, fresh_examples):
        return self._source.bytes_read(fresh_examples)

    def __len__(self):
        return len(self._source)

    def __getitems__(self, indices):
        with self._lock:
            self._left -= len(indices)
            late = self._left < 0
        if late:
            self._arrived.wait()
        return self._source.__getitems__(indices)


@contextlib.contextmanager
def late_examples(examples, step):
    """Within, only `examples` training examples arrive before a run has taken `step` steps. Yields
    the run's `on_step` hook."""
    opened, arrived = experiment.open_splits, threading.Event()

    def late(dataset):
        source, held_out, info = opened(dataset)
        return LateSource(source, examples, arrived), held_out, info

    experiment.open_splits = late
    try:
        yield lambda taken: taken < step or arrived.set()
    finally:
        experiment.open_splits = opened
        arrived.set()


def main(step, *arguments):
    def hold(taken):
        if taken == step:
            print("held", flush=True)
            sys.stdin.read()

    hooks = [hold]
    with contextlib.ExitStack() as stack:
        if arguments[0].startswith("--late="):
            examples, late_step = map(int, arguments[0].removeprefix("--late=").split(":"))
            hooks.append(stack.enter_context(late_examples(examples, late_step)))
            arguments = arguments[1:]

        def on_step(taken):
            for hook in hooks:
                hook(taken)

        return cli.guarded(lambda argv: train.main(argv, on_step), list(arguments))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
