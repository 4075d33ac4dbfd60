"""Values that the processes of a run exchange in rounds while their devices compute."""

import itertools
import json
from typing import Any

import jax


class PeerLeft(Exception):
    """Another process has left the run; the message names it."""


class Exchange:
    """Exchanges values between processes in rounds.

    Uses the key-value store of JAX's coordinator, which has no public API; single processes do
    not depend on it. A collective on the devices (`processes.gather`) would be queued behind the
    running step and block the host.

    All processes must create their exchanges in the same order and take part in every round.
    """

    _numbers = itertools.count()

    def __init__(self):
        self._name, self._round = f"exchange/{next(self._numbers)}", 0
        self._open = jax.process_count() > 1
        if self._open:
            from jax._src import distributed

            self._client: Any = distributed.global_state.client

    def __call__(self, value: Any) -> list[Any]:
        """The JSON values that all processes passed in this round, in order, in every process.

        Raises:
            PeerLeft: a process has closed its exchange, or process 0 has ended.
        """
        if jax.process_count() == 1:
            return [value]
        self._post([value])
        posts = [self._get(self._key(process)) for process in range(jax.process_count())]
        if [] in posts:
            self._open = False
            raise PeerLeft(
                f"process {posts.index([])} has left the run; its own output says why, and the "
                "same command resumes from the last checkpoint"
            )
        if self._round:  # all have posted in this round, so they have read the one before
            self._client.key_value_delete(self._key(jax.process_index(), before=1))
        self._round += 1
        return [value for (value,) in posts]

    def close(self) -> None:
        """Leaves the exchange; processes that wait in the current round raise PeerLeft."""
        if self._open:
            self._open = False
            self._post([])

    def _key(self, process: int, before: int = 0) -> str:
        return f"{self._name}/{self._round - before}/{process}"

    def _post(self, post: list[Any]) -> None:
        self._client.key_value_set(self._key(jax.process_index()), json.dumps(post))

    def _get(self, key: str) -> list[Any]:
        while True:  # one second at a time, so that Python handles Ctrl-C in between
            try:
                return json.loads(self._client.blocking_key_value_get(key, 1000))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise PeerLeft("process 0 is gone; see its own output") from error
