"""A field of a configuration, and the values that it may have: ranges, choices, text."""

import dataclasses
import decimal
import math
import numbers
import os
from typing import Any


class FieldError(ValueError):
    """A value that a field cannot have; the message is a sentence that says what is allowed."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`.

    Attributes:
        above: `low` itself is left out.
        below: `high` itself is left out.
        zero: 0 is allowed too, and means that something is off.
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

    def words(self, kind: type) -> str:
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

    def words(self, kind: type) -> str:
        del kind
        return ", ".join(map(repr, self.values))


@dataclasses.dataclass(frozen=True)
class Switch:
    """Yes or no."""

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, bool)

    def words(self, kind: type) -> str:
        del kind
        return "true or false"


@dataclasses.dataclass(frozen=True)
class Text:
    """Printable text of so many characters."""

    most: int
    least: int = 0

    def __contains__(self, value: Any) -> bool:
        return self.least <= len(value) <= self.most and value.isprintable()

    def words(self, kind: type) -> str:
        del kind
        return f"text of {self.least} to {self.most} printable characters"


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    Attributes:
        default: of the field's type: bool, int, float or str.
        help: what it means, in which unit.
        allowed: its range.
    """

    name: str
    default: bool | int | float | str
    help: str
    allowed: Range | Choices | Switch | Text

    @property
    def allowed_words(self) -> str:
        """What is allowed, as help and messages say it."""
        return self.allowed.words(type(self.default))

    def read(self, value: Any) -> Any:
        """`value`, or what it says as text, in the field's type.

        Raises:
            FieldError: it is of another type or out of the range.
        """
        try:
            read = _READ[type(self.default)](value, self.allowed)
        except (ValueError, ArithmeticError, TypeError):
            raise self._error(value) from None
        if read not in self.allowed:
            raise self._error(value)
        return read

    def check(self, value: Any) -> None:
        """Checks a value that is in a configuration, so that nothing is left to be converted.

        Raises:
            FieldError: it is of another type or out of the range.
        """
        kind = type(self.default)
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, _HELD[kind]):
            raise self._error(value)
        self.read(value)

    def _error(self, value: Any) -> FieldError:
        return FieldError(f"config.{self.name} is {_shown(value)}; allowed: {self.allowed_words}")


# What a configuration may hold in a field, by the field's type.
_HELD = {bool: bool, int: int, float: (int, float), str: str}


def _read_bool(value: Any, allowed: Any) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())


def _read_int(value: Any, allowed: Range) -> int:
    """The exact number: 1e6 is fine, 1.5 is not, nor is 1e999999999, whose digits fill memory."""
    if isinstance(value, bool) or not isinstance(value, str | numbers.Real):
        raise TypeError
    if not isinstance(value, str):
        value = int(value) if isinstance(value, numbers.Integral) else float(value)
    exact = decimal.Decimal(value)
    if not exact.is_finite() or exact not in allowed or exact != exact.to_integral_value():
        raise ValueError
    return int(exact)


def _read_float(value: Any, allowed: Range) -> float:
    if isinstance(value, bool) or not isinstance(value, str | numbers.Real):
        raise TypeError
    return float(value)


def _read_str(value: Any, allowed: Any) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str.__str__(value)


_READ = {bool: _read_bool, int: _read_int, float: _read_float, str: _read_str}


def _shown(value: Any, most: int = 80) -> str:
    """A value in a message: a number as it was written, other text in quotes, neither at length."""
    try:
        decimal.Decimal(value)
        text = str(value).strip()
    except (ValueError, ArithmeticError, TypeError):
        # an integer may have more digits than Python writes
        text = "a longer number" if isinstance(value, int) else repr(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _number(x: float) -> str:
    """A number as it can be given on the command line."""
    if x >= 10**6 and math.log10(x).is_integer():
        return f"1e{round(math.log10(x))}"
    return str(int(x)) if x == int(x) else repr(x)
