"""Checkpoints of a run: arrays and a JSON value that belong together, saved in the background."""

import logging
import os
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from runs import processes

# Orbax and its file layer log every save, some as warnings; a command's output is its own.
logging.getLogger("absl").setLevel(logging.ERROR)


class Checkpoints:
    """The newest two checkpoints of a run, and the best one.

    Args:
        directory: made when the first checkpoint is saved.
        mode: 'above' or 'below': which values of the metric are better.
    """

    def __init__(self, directory: str | os.PathLike, mode: str):
        self._directory = pathlib.Path(directory).absolute()
        self._mode = mode
        self._opened: ocp.CheckpointManager | None = None
        # Opening waits for all processes, so that all must know alike whether there is any.
        self._there = processes.decided_by_first(self._directory.exists)

    def save(self, step: int, arrays: Any, value: Any, metric: float | None) -> None:
        """Saves without waiting for the disk.

        Args:
            step: names the checkpoint; one of the same step is replaced.
            arrays: a pytree of arrays; it may be changed once this returns.
            value: what JSON can hold.
            metric: the validation metric at this step, None where it was not evaluated here.
        """
        self._there = True
        if step in self._manager().all_steps():
            self._manager().wait_until_finished()  # it may still be on its way to the disk
            self._manager().delete(step)
        self._manager().save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(by_path(arrays)), value=ocp.args.JsonSave(value)
            ),
            metrics=None if metric is None else {"metric": metric},
        )

    def latest_step(self) -> int | None:
        """The newest whole checkpoint's step, None where there is none."""
        return self._manager().latest_step() if self._there else None

    def best_step(self) -> int | None:
        """The step with the best metric among those kept, None where none was evaluated."""
        return self._manager().best_step() if self._there else None

    def restore(self, step: int, like: Any) -> tuple[Any, Any]:
        """The (arrays, value) of a checkpoint; arrays take structure and sharding from `like`."""
        leaves, structure = jax.tree.flatten(like)
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in leaves]
        wanted = by_path(jax.tree.unflatten(structure, specs))
        saved = self._manager().restore(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardRestore(wanted), value=ocp.args.JsonRestore()
            ),
        )
        return jax.tree.unflatten(structure, [saved.arrays[name] for name in wanted]), saved.value

    def close(self) -> None:
        """Waits for what is being saved."""
        if self._opened is not None:
            self._opened.wait_until_finished()
            self._opened.close()
            self._opened = None

    def _manager(self) -> ocp.CheckpointManager:
        if self._opened is None:
            policies = checkpoint_managers
            best = policies.BestN(
                get_metric_fn=lambda metrics: metrics["metric"],
                reverse=self._mode == "below",
                n=1,
                keep_checkpoints_without_metrics=False,
            )
            options = ocp.CheckpointManagerOptions(
                best_fn=lambda metrics: metrics["metric"],
                best_mode="max" if self._mode == "above" else "min",
                preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(2), best]),
                create=True,
            )
            self._opened = ocp.CheckpointManager(self._directory, options=options)
        return self._opened


def by_path(tree: Any) -> dict[str, Any]:
    """Leaves by name, such as 'params/blocks/0/conv1/conv/kernel', in the tree's own order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
