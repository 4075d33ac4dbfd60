"""A field of a configuration: its default, its meaning, and the values that it may have."""

import dataclasses
import math
import numbers
import os
from typing import Any

from echo.spec import abbreviated


class FieldError(ValueError):
    """A field cannot have this value; the message is one sentence that says what is allowed."""


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    Attributes:
        default: a value of the field's type: bool, int, float, or str.
        help: what the field means, with its unit.
        low, high: the smallest and the largest number; None = no limit.
        choices: the allowed texts; empty = any printable text.
    """

    name: str
    default: bool | int | float | str
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """What the field may be, in words."""
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, str):
            return ", ".join(map(repr, self.choices)) or "printable text"
        low = "" if self.low is None else f" from {_number(self.low)}"
        high = "" if self.high is None else f" to {_number(self.high)}"
        return f"{'a whole number' if isinstance(self.default, int) else 'a number'}{low}{high}"

    def read(self, value: Any) -> Any:
        """`value`, or the value that it represents as text, in the field's type.

        Raises:
            FieldError: it is of another type or out of range.
        """
        try:
            return self._read(value)
        except (ValueError, LookupError, ArithmeticError, TypeError):
            raise self._error(value) from None

    def check(self, value: Any) -> None:
        """Checks a value of a configuration, which must already have the field's type.

        Raises:
            FieldError: it is of another type or out of range.
        """
        kind = type(self.default)
        kinds = (int, float) if kind is float else kind
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, kinds):
            raise self._error(value)
        self.read(value)

    def _read(self, value: Any) -> Any:
        if isinstance(self.default, bool):
            return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
        if isinstance(self.default, str):
            text: Any = os.fspath(value)
            known = text in self.choices or not self.choices
            if not isinstance(text, str) or not text.isprintable() or not known:
                raise ValueError
            return text
        if isinstance(value, bool) or not isinstance(value, str | numbers.Real):
            raise TypeError
        number = float(value)  # whole numbers too: '1e6' is one, and all allowed ones are exact
        whole = isinstance(self.default, int)
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not (low <= number <= high and math.isfinite(number)):
            raise ValueError
        if whole and not number.is_integer():
            raise ValueError
        return int(number) if whole else number

    def _error(self, value: Any) -> FieldError:
        return FieldError(f"config.{self.name} is {abbreviated(value)}; allowed: {self.allowed}")


def _number(x: float) -> str:
    """A number without a long row of digits, where that is exact."""
    return f"{x:g}" if float(f"{x:g}") == x else str(x)
