"""What to echo, where and how often: one value that is checked when it is made."""

import dataclasses
import decimal
import fractions
import numbers

INSERTIONS = ("none", "before_augmentation", "after_augmentation", "after_batching")
PLACEMENTS = ("host", "device")

# Far beyond any use, and small enough for echoed positions to be counted in 64 bits.
MAX_FACTOR = 1_000_000
MAX_BUFFER = 2**40  # slots
MAX_SEED = 2**128 - 1  # of Philox
MAX_BATCH = 2**31 - 1
MAX_POSITION = 2**62 - 1


class EchoSpecError(ValueError):
    """A setting that is not allowed. The message names the field, its value and the rule."""

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(f"{field} is {_shown(value)}; allowed: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


def exact_factor(factor: object) -> fractions.Fraction:
    """The echoing factor as the exact decimal that was written: 1.1 is 11/10, not a binary float.

    Raises:
        EchoSpecError: not a number, not finite, below 1 or beyond a million.
    """
    try:
        text = str(factor)
        # '1e999999999' is compared before it becomes a fraction, whose digits would fill memory
        number = fractions.Fraction(text) if "/" in text else decimal.Decimal(text)
        if 1 <= number <= MAX_FACTOR:
            return fractions.Fraction(text)
    except (ValueError, ArithmeticError):
        pass
    raise EchoSpecError("factor", factor, f"a number from 1 to {MAX_FACTOR}, such as 2 or 1.5")


def checked_integer(field: str, value: object, minimum: int, maximum: int) -> int:
    """`value` as an int from `minimum` to `maximum`, or an EchoSpecError that names `field`."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not minimum <= value <= maximum:
        allowed = f"an integer of at least {minimum} and at most {maximum}"
        raise EchoSpecError(field, value, allowed)
    return int(value)


def checked_number(field: str, value: object, minimum: float, maximum: float) -> float:
    """`value` as a float from `minimum` to `maximum`, or an EchoSpecError that names `field`."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not minimum <= value <= maximum:
        raise EchoSpecError(
            field, value, f"a number of at least {minimum:g} and at most {maximum:g}"
        )
    return float(value)


def missing_package(what: str, package: str, extra: str) -> ImportError:
    """The error for something of this library that needs a package which is not there."""
    return ImportError(
        f"{what} needs {package}, which is not installed; pip install {package} "
        f"(or this library with [{extra}])",
        name=package,
    )


@dataclasses.dataclass(frozen=True)
class EchoSpec:
    """Where to echo, how often, and how copies are mixed.

    Attributes:
        insertion: the slot of the pipeline that the stage fills. At "none" there is no stage, so
            factor must be 1 and a buffer would do nothing.
        factor: how often each fresh item is shown on average, at least 1; fractions allowed.
        shuffle_buffer: slots of the streaming shuffle buffer behind the stage, counted in items of
            the slot (examples, or whole batches after batching); 0 leaves copies adjacent.
        seed: of the shuffle buffer's choices, from 0 to MAX_SEED.
        placement: where repeated items are kept: "host" or "device" memory.

    Raises:
        EchoSpecError: on construction; the message names the field, its value and what is allowed.
    """

    insertion: str = "none"
    factor: float | int | str | fractions.Fraction = 1
    shuffle_buffer: int = 0
    seed: int = 0
    placement: str = "host"

    def __post_init__(self):
        if self.insertion not in INSERTIONS:
            raise EchoSpecError("insertion", self.insertion, one_of(INSERTIONS))
        if self.placement not in PLACEMENTS:
            raise EchoSpecError("placement", self.placement, one_of(PLACEMENTS))
        factor = exact_factor(self.factor)
        checked_integer("shuffle_buffer", self.shuffle_buffer, 0, MAX_BUFFER)
        checked_integer("seed", self.seed, 0, MAX_SEED)
        if self.insertion == "none" and factor != 1:
            raise EchoSpecError(
                "factor",
                self.factor,
                "1 where insertion is 'none', since nothing is repeated there",
            )

    @property
    def exact_factor(self) -> fractions.Fraction:
        return exact_factor(self.factor)


def _shown(value: object) -> str:
    """A value in a message, not at length."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a longer number"
    return text if len(text) <= 80 else f"{text[:80]}... ({len(text)} characters)"


def one_of(values: tuple[str, ...]) -> str:
    """The allowed values as a message lists them."""
    return ", ".join(repr(value) for value in values)
