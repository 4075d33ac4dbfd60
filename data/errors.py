"""What can be wrong with data, as exceptions whose messages are sentences for the user."""

# What a library says of a record may quote the record.
_LONGEST_REASON = 300


class SourceError(Exception):
    """The data set or split that was asked for is not there, or not usable; the message says what
    to do."""


class RecordError(ValueError):
    """A record that cannot be read or decoded; the message names it and says why."""


def reason(error: Exception) -> str:
    """Why something failed, on one line and not too long.

    An error that is not ValueError or OSError begins with its type, since its text may not be meant
    to stand alone: that of KeyError is a key. The sentences of this project are given whole.
    """
    if isinstance(error, SourceError | RecordError):
        return str(error)
    text = " ".join(str(error).split()) or "no reason given"
    if not isinstance(error, ValueError | OSError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."
