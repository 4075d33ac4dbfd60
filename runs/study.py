"""What a study's plan may say, for the side that writes study.json and the side that reads it.

Each function raises ValueError with one sentence: what is wrong, its value, and what is allowed.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

SCALES = ("linear", "log", "log_one_minus", "choice")
_ENDS = ("min", "max")
_AXIS_KEYS = ("field", "scale", "values", "times", *_ENDS)

# A condition is a directory's name, on any file system, and a word in messages.
_NAME = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]{0,99}")
_TAKEN = ("study.json", "report")  # what else goes to a study's directory


def check_name(name: Any) -> None:
    """Checks that a condition's name can be that of its directory."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
        raise ValueError(
            f"a condition is named {short(name)}, and its trials go to a directory of that name; "
            "allowed: up to 100 letters, digits, '_', '-', '=' and '.', the first of them no '.', "
            f"but not {' or '.join(_TAKEN)}"
        )


def check_axis(axis: Any) -> None:
    """Checks the shape of one axis of a search space: its keys, and the kinds of their values."""
    if not isinstance(axis, Mapping):
        raise ValueError(
            f"an axis of the search space is {short(axis)}; allowed: a dict with field, scale and "
            "min, max or values"
        )
    for key in ("field", "scale"):
        if not isinstance(axis.get(key), str):
            raise ValueError(
                f"an axis of the search space has {key} {short(axis.get(key))} (of {short(axis)}); "
                + ("allowed: a field's name" if key == "field" else f"allowed: {', '.join(SCALES)}")
            )
    name, scale = axis["field"], axis["scale"]
    if unknown := [key for key in axis if key not in _AXIS_KEYS]:
        raise ValueError(
            f"{name}: {short(unknown[0])} is not understood; allowed: {', '.join(_AXIS_KEYS)}"
        )
    if not isinstance(axis.get("times", ""), str):
        raise ValueError(f"{name}: times is {short(axis['times'])}; allowed: a field's name")
    if scale not in SCALES:
        raise ValueError(f"{name}: scale is {short(scale)}; allowed: {', '.join(SCALES)}")
    needs = {"values"} if scale == "choice" else set(_ENDS)
    if missing := needs - set(axis):
        words = ", ".join(sorted(missing))
        raise ValueError(f"{name}: {words} is missing; a {scale} axis needs it")
    if scale == "choice":
        _check_choices(name, axis["values"])
    else:
        _check_ends(name, scale, axis)


def _check_choices(name: str, values: Any) -> None:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not values:
        raise ValueError(f"{name}: values are {short(values)}; allowed: a list with at least one")
    for value in values:
        if not isinstance(value, str | bool) and not is_number(value):
            raise ValueError(
                f"{name}: values hold {short(value)}; allowed: finite numbers, texts, true, false"
            )


def _check_ends(name: str, scale: str, axis: Mapping[str, Any]) -> None:
    for end in _ENDS:
        if not is_number(axis[end]):
            raise ValueError(f"{name}: {end} is {short(axis[end])}; allowed: a finite number")
    low, high = (axis[end] for end in _ENDS)
    if low > high:
        raise ValueError(f"{name}: min {low} is above max {high}; allowed: min <= max")
    if scale.startswith("log") and low <= 0:
        raise ValueError(f"{name}: min is {low}; allowed on a {scale} axis: above 0")


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number, which true and false are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float comes near
        return False


def short(value: Any) -> str:
    """A value for a sentence, however long it is."""
    try:
        words = repr(value)
    except Exception:  # whole numbers of thousands of digits, and objects of any kind
        words = f"a {type(value).__name__} that cannot be shown"
    return words if len(words) <= 60 else f"{words[:60]}..."
