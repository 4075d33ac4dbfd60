"""train.py's command, held at a step, so that a test meets a run in its middle whatever the speed.

    python -m tests.helpers.held_training STEP [--late=EXAMPLES:STEP] [train.py's words]

After STEP steps it prints "held" and waits until its standard input is closed. With --late, no more
than so many examples come from upstream before that step: echo.policy=auto then repeats.
"""

import contextlib
import sys
import threading

import train
from data import splits
from runs import cli


class LateSource:
    """A source that gives `examples` at most until `come` is set."""

    def __init__(self, source, examples, come):
        self._source, self._left, self._come = source, examples, come
        self._lock = threading.Lock()

    def __len__(self):
        return len(self._source)

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        with self._lock:
            self._left -= len(indices)
            late = self._left < 0
        if late:
            self._come.wait()
        return self._source.__getitems__(indices)


@contextlib.contextmanager
def after_steps(act):
    """Within, `act` is called with the number of steps that a run has taken, after each."""
    original = train._Run._train_on

    def train_on(run, batch):
        original(run, batch)
        act(run.counters.step)

    train._Run._train_on = train_on
    try:
        yield
    finally:
        train._Run._train_on = original


@contextlib.contextmanager
def late_examples(examples, step):
    """Within, only `examples` of a run's come from upstream before it has taken `step` steps."""
    slowed, come = splits._slowed, threading.Event()

    def late(*arguments):
        return LateSource(slowed(*arguments), examples, come)

    splits._slowed = late
    try:
        with after_steps(lambda taken: taken < step or come.set()):
            yield
    finally:
        splits._slowed = slowed
        come.set()


def main(step, *words):
    def hold(taken):
        if taken == step:
            print("held", flush=True)
            sys.stdin.read()

    with contextlib.ExitStack() as stack:
        stack.enter_context(after_steps(hold))
        if words[0].startswith("--late="):
            stack.enter_context(late_examples(*map(int, words[0][len("--late=") :].split(":"))))
            words = words[1:]
        return cli.guarded(train.main, list(words))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
