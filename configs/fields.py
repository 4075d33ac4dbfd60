"""A field of a configuration: its default, its meaning, and the values that it may have."""

import contextlib
import dataclasses
import math
import numbers
import os
import re
from typing import Any

from echo.spec import abbreviated

_NO_TEXT = ("None", "null")  # as which other tools write that there is none


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    Attributes:
        default: a value of the field's type: bool, int, float, or str.
        help: what the field means, with its unit.
        low, high: the smallest and the largest number.
        choices: the allowed texts; empty = any printable text.
    """

    name: str
    default: bool | int | float | str
    help: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """What the field may be, in words."""
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, str):
            return ", ".join(map(repr, self.choices)) or "printable text, not None"
        # without a long row of digits, where that is exact
        low, high = (f"{x:g}" if float(f"{x:g}") == x else x for x in (self.low, self.high))
        return f"{'a whole number' if isinstance(self.default, int) else 'a number'}" + (
            f" from {low}" * (self.low > -math.inf) + f" to {high}" * (self.high < math.inf)
        )

    def read(self, value: Any) -> Any:
        """`value`, or the value that it represents as text, in the field's type.

        Raises:
            ValueError: it is of another type or out of range; the message is one sentence.
        """
        kind = type(self.default)
        with contextlib.suppress(ValueError, LookupError, ArithmeticError, TypeError):
            if kind is bool:
                return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
            if kind is str:
                text = str(os.fspath(value))
                plain = text.isprintable() and text == text.strip() and text not in _NO_TEXT
                if text in self.choices or (plain and not self.choices):
                    return text
            elif isinstance(value, str | numbers.Real) and not isinstance(value, bool):
                number = float(value)  # whole numbers too: '1e6' is one
                exact = kind is float or (number.is_integer() and abs(number) <= 2**53)
                exact &= not re.match(r"\s*[+-]?0[0-9_]", str(value))  # octal, or the end of 1,024
                if exact and self.low <= number <= self.high and math.isfinite(number):
                    return kind(number)
        raise ValueError(f"config.{self.name} is {abbreviated(value)}; allowed: {self.allowed}")

    def check(self, value: Any) -> None:
        """Checks a value of a configuration, which must already have the field's type; raises
        ValueError."""
        kinds = (int, float) if isinstance(self.default, float) else type(self.default)
        if not isinstance(value, kinds) or self.read(value) != value:
            raise ValueError(f"config.{self.name} is {abbreviated(value)}; allowed: {self.allowed}")
