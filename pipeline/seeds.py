"""Seeds derived from a run's data seed, each by a hash, so that no two uses share one.

Sums would collide: epoch 1 of data seed 0 would have the seed of epoch 0 of data seed 1, and the
searches of a study, whose data seeds are consecutive, would not be independent.
"""

import hashlib


def derived(use: str, *numbers: int, bits: int = 64) -> int:
    """A seed in [0, 2**bits) for `use`, such as an epoch's order, given (data seed, epoch).

    It is the BLAKE2b hash of the text "use/number/number", so it depends on no library's version.
    """
    text = "/".join([use, *(str(int(number)) for number in numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=bits // 8).digest(), "little")
