"""The settings of echoing: what is allowed, and how a wrong value is reported."""

import decimal
import fractions
import numbers
from typing import Any

import numpy as np

INSERTIONS = ("none", "before_augmentation", "after_augmentation", "after_batching")
"""Where an echo stage may be, in the order of the stages; "none" is no echo stage."""

PLACEMENTS = ("host", "device")
"""Allowed values of a stage's `placement`."""

Factor = float | str | fractions.Fraction
"""How an echo factor may be written: 2, 1.5, "4/3", or fractions.Fraction(4, 3)."""

# Far beyond any use, and small enough to count echoed positions in 64 bits.
MAX_FACTOR = 1_000_000
MAX_BUFFER = 2**40  # slots
MAX_SEED = 2**128 - 1  # of Philox
MAX_BATCH = 2**31 - 1
MAX_POSITION = 2**62 - 1

_MAX_VALUE_CHARACTERS = 80  # of a value in an error message


class EchoSpecError(ValueError):
    """A setting has a value that is not allowed.

    Attributes:
        field: the name of the setting.
        value: its value.
        allowed: the allowed values, in words.
    """

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(f"{field} is {abbreviated(value)}; allowed: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed

    def __reduce__(self) -> tuple:  # by default it would be made from its message alone
        return type(self), (self.field, self.value, self.allowed)


def exact_factor(factor: object) -> fractions.Fraction:
    """The echo factor as the exact decimal that was written: 1.1 is 11/10, not a binary float, and
    the float 4/3 is 1.3333333333333333, of which 30 items have 39 copies, not 40. EchoSpecError if
    it is not a number from 1 to MAX_FACTOR."""
    try:
        text = str(factor)
        # '1e999999999' is compared before it becomes a fraction, whose digits would fill memory.
        number = fractions.Fraction(text) if "/" in text else decimal.Decimal(text)
        if 1 <= number <= MAX_FACTOR:
            return fractions.Fraction(text)
    except (ValueError, ArithmeticError):
        pass
    raise EchoSpecError("factor", factor, f"a number from 1 to {MAX_FACTOR}, such as 2 or 1.5")


def checked_integer(field: str, value: Any, minimum: int, maximum: int) -> int:
    """`value` as an int from `minimum` to `maximum`; EchoSpecError if it is none."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if is_integer and minimum <= int(value) <= maximum:
        return int(value)
    raise EchoSpecError(field, value, f"an integer of at least {minimum} and at most {maximum}")


def checked_number(field: str, value: Any, minimum: float, maximum: float) -> float:
    """`value` as a float from `minimum` to `maximum`; EchoSpecError if it is none."""
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_real and minimum <= (number := float(value)) <= maximum:
        return number
    raise EchoSpecError(field, value, f"a number of at least {minimum:g} and at most {maximum:g}")


def checked_switch(field: str, value: Any) -> bool:
    """`value` as a bool. The truth of anything else would be a guess: that of "no" is True."""
    if not isinstance(value, bool | np.bool_):
        raise EchoSpecError(field, value, "True or False")
    return bool(value)


def abbreviated(value: object) -> str:
    """`repr(value)` for an error message: one line, not too long."""
    try:
        text = " ".join(repr(value).split())  # of an array: one line for each row
    except ValueError:  # an integer with more digits than Python converts
        return "a longer number"
    if len(text) <= _MAX_VALUE_CHARACTERS:
        return text
    return f"{text[:_MAX_VALUE_CHARACTERS]}... ({len(text)} characters)"
