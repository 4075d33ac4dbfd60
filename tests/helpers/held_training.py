"""The command train.py, paused at a step, so that a test meets a run halfway at any speed.

    python -m tests.helpers.held_training STEP [--late=EXAMPLES:STEP] [arguments of train.py]

After STEP steps it prints "held" and waits until its standard input is closed. With --late, at most
EXAMPLES examples arrive from upstream before the run has taken that many steps, so echo.policy=auto
has to repeat.
"""

import contextlib
import copy
import sys
import threading

import train
from runs import cli
from training import experiment


@contextlib.contextmanager
def late_examples(examples, step):
    """Within, only `examples` training examples arrive before a run has taken `step` steps. Yields
    the run's `on_step` hook."""
    opened, arrived, lock = experiment.open_splits, threading.Event(), threading.Lock()

    def late(dataset):
        source, held_out, info = opened(dataset)
        source = copy.copy(source)
        read, left = source.__getitems__, [examples]

        def read_late(indices):
            with lock:
                left[0] -= len(indices)
                enough = left[0] >= 0
            if not enough:
                arrived.wait()
            return read(indices)

        source.__getitems__ = read_late
        return source, held_out, info

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
