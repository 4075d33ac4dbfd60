"""A field of a configuration, and the values that it may have: ranges, choices, text."""

import dataclasses
import decimal
import math
import numbers
import os
from typing import Any

_MAX_QUOTED = 80  # characters of a value in a message


class FieldError(ValueError):
    """A field cannot have this value; the message is one sentence that says what is allowed."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`.

    Attributes:
        above: exclude `low` itself.
        below: exclude `high` itself.
        zero: also allow 0, which means that something is off.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    zero: bool = False

    def __contains__(self, value: Any) -> bool:
        if self.zero and value == 0:
            return True
        low = self.low < value if self.above else self.low <= value
        return low and (value < self.high if self.below else value <= self.high)

    def describe(self, kind: type) -> str:
        number = "a whole number" if kind is int else "a number"
        low = f"{'above' if self.above else 'from'} {_number(self.low)}"
        high = f"{', up' if self.above else ''} to {'below ' if self.below else ''}"
        return f"{'0, or ' if self.zero else ''}{number} {low}{high}{_number(self.high)}"


@dataclasses.dataclass(frozen=True)
class Choices:
    """One of a few values."""

    values: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    def describe(self, kind: type) -> str:
        return "true or false" if kind is bool else ", ".join(map(repr, self.values))


SWITCH = Choices((False, True))


@dataclasses.dataclass(frozen=True)
class Text:
    """Printable text of limited length."""

    max_length: int
    min_length: int = 0

    def __contains__(self, value: Any) -> bool:
        return self.min_length <= len(value) <= self.max_length and value.isprintable()

    def describe(self, kind: type) -> str:
        return f"text of {self.min_length} to {self.max_length} printable characters"


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    Attributes:
        default: a value of the field's type: bool, int, float, or str.
        help: what the field means, with its unit.
        allowed: its range.
    """

    name: str
    default: bool | int | float | str
    help: str
    allowed: Range | Choices | Text

    @property
    def range_text(self) -> str:
        """The range, as help and messages state it."""
        return self.allowed.describe(type(self.default))

    def read(self, value: Any) -> Any:
        """`value`, or the value that it represents as text, in the field's type.

        Raises:
            FieldError: it is of another type or out of range.
        """
        try:
            read = _READ[type(self.default)](value, self.allowed)
        except (ValueError, LookupError, ArithmeticError, TypeError):
            raise self._error(value) from None
        if read not in self.allowed:
            raise self._error(value)
        return read

    def check(self, value: Any) -> None:
        """Checks a value of a configuration, which must already have the field's type.

        Raises:
            FieldError: it is of another type or out of range.
        """
        kind = type(self.default)
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, _ACCEPTED[kind]):
            raise self._error(value)
        self.read(value)

    def _error(self, value: Any) -> FieldError:
        return FieldError(f"config.{self.name} is {_quoted(value)}; allowed: {self.range_text}")


# Types of value that a configuration may hold in a field, by the field's type.
_ACCEPTED = {bool: bool, int: int, float: (int, float), str: str}


def _read_bool(value: Any, allowed: Any) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]


def _read_int(value: Any, allowed: Any) -> int:
    """The exact number: accepts 1e6, but neither 1.5 nor 1e999999999, whose digits fill memory."""
    if isinstance(value, bool) or not isinstance(value, str | numbers.Real):
        raise TypeError
    if not isinstance(value, str):
        value = int(value) if isinstance(value, numbers.Integral) else float(value)
    exact = decimal.Decimal(value)
    if not exact.is_finite() or exact not in allowed or exact != exact.to_integral_value():
        raise ValueError
    return int(exact)


def _read_float(value: Any, allowed: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | numbers.Real):
        raise TypeError
    return float(value)


def _read_str(value: Any, allowed: Any) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str.__str__(value)


_READ = {bool: _read_bool, int: _read_int, float: _read_float, str: _read_str}


def _quoted(value: Any) -> str:
    """A value for a message, of limited length: numbers as written, other text in quotes."""
    try:
        decimal.Decimal(value)
        text = str(value).strip()
    except (ValueError, ArithmeticError, TypeError):
        # Python refuses to print integers of thousands of digits
        text = "a longer number" if isinstance(value, int) else repr(value)
    if len(text) <= _MAX_QUOTED:
        return text
    return f"{text[:_MAX_QUOTED]}... ({len(text)} characters)"


def _number(x: float) -> str:
    """A number as it can be given on the command line, without a long row of digits."""
    if abs(x) >= 10**6:
        power = math.log10(abs(x))
        return f"{'-' * (x < 0)}1e{round(power)}" if power.is_integer() else f"{int(x):_}"
    return str(int(x)) if x == int(x) else repr(x)
