"""Flattening of examples: nested dicts, tuples and lists of arrays, without any library but numpy."""

from collections.abc import Callable
from typing import Any

import numpy as np


def flatten(item: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of `item`, and a function that puts others in their places.

    Dicts, lists, tuples and named tuples are structure; everything else is a leaf.
    """
    leaves: list[Any] = []

    def visit(node):
        if isinstance(node, dict):
            keys, parts = list(node), [visit(value) for value in node.values()]
            return lambda new: dict(zip(keys, [part(new) for part in parts], strict=True))
        if isinstance(node, tuple | list):
            parts = [visit(value) for value in node]
            kind = type(node)
            if hasattr(node, "_fields"):
                return lambda new: kind(*[part(new) for part in parts])
            return lambda new: kind([part(new) for part in parts])
        leaves.append(node)
        return next

    build = visit(item)
    return leaves, lambda new: build(iter(new))


def map_leaves(function: Callable[[Any], Any], item: Any) -> Any:
    """`item` with `function` applied to each leaf."""
    leaves, rebuild = flatten(item)
    return rebuild([function(leaf) for leaf in leaves])


def stack(items: list[Any]) -> Any:
    """Items of one structure as one item whose leaves are stacked along a new first axis."""
    _, rebuild = flatten(items[0])
    columns = zip(*(flatten(item)[0] for item in items), strict=True)
    return rebuild([np.stack(column) for column in columns])
