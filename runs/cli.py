"""What all commands share: configurations, help that teaches, errors in one sentence."""

import argparse
import contextlib
import difflib
import errno
import importlib.util
import os
import pathlib
import re
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import ml_collections

from runs import records, signals, terminal

OK, WRONG_INPUT, DIVERGED, FAILED, PREEMPTED = 0, 2, 3, 4, 75
EXIT_CODES = {
    "reached": OK,
    "exhausted": OK,
    "diverged": DIVERGED,
    "failed": FAILED,
    "preempted": PREEMPTED,
}


class Field(Protocol):
    """What a command has to know of a field of the configuration, see configs/fields.py."""

    name: str
    default: object
    help: str
    allowed_words: str

    def read(self, value: object) -> object:
        """The value in the field's type, from text or another value; ValueError says what is
        allowed."""


Fields = Sequence[Field]


class InputError(Exception):
    """Something the user gave is wrong; the message is a sentence that says what to do instead."""


class DiskFull(Exception):
    """No room to write; the message is a sentence that says where, and what to do."""


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is a disk or a quota that is full."""
    while error is not None:
        # checkpoints are written by a library that hands on the system's words alone
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        if os.strerror(errno.ENOSPC) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def disk_full_named(where: pathlib.Path) -> Iterator[None]:
    """Raises DiskFull, naming the directory, in place of an error that says no more than that."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DiskFull) or not is_disk_full(error):
            raise
        raise DiskFull(
            f"no space is left on the disk of {where}; make room there and start the same command "
            "again, which goes on from what is whole"
        ) from error


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@contextlib.contextmanager
def writing_to(directory: pathlib.Path) -> Iterator[None]:
    """Raises InputError, naming the directory, in place of an error of the file system in it."""
    shown = _shortened(str(directory))
    if _URL.match(shown):
        raise InputError(f"{shown} is a URL; give a directory, such as a bucket that is mounted")
    if "\0" in str(directory):
        raise InputError(f"{shown} holds a zero byte; give a directory's name")
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise
        raise InputError(
            f"{shown} cannot be used ({error.strerror or error}); give a directory that can be "
            "written"
        ) from error


# Errors of the file system that are a path's fault, wherever it is first used.
_OF_A_PATH = (
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EEXIST),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
)


def guarded(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Runs a command, whose exit code it returns whether or not anybody reads its output.

    Wrong input becomes one sentence on standard error and exit code 2, a full disk one and 4,
    Ctrl-C 130.
    """
    terminal.survive_hangup()
    before = signal.getsignal(signal.SIGINT)
    signals.install(signals.raise_once)
    try:
        return main(sys.argv[1:] if argv is None else argv)
    except (InputError, DiskFull, records.Damaged) as error:
        terminal.write(f"error: {error}", sys.stderr)
        return FAILED if isinstance(error, DiskFull) else WRONG_INPUT
    except OSError as error:
        if error.errno not in _OF_A_PATH:
            raise
        where = f": {_shortened(str(error.filename))}" if error.filename else ""
        terminal.write(f"error: {error.strerror}{where}; give another path", sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        terminal.write("interrupted", sys.stderr)
        return signals.INTERRUPTED
    finally:
        signals.install(before)
        terminal.flush()


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are InputErrors and whose help explains the configuration."""

    def __init__(self, description: str, fields: Fields = ()):
        super().__init__(
            description=description,
            epilog=_describe(fields) if fields else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str):
        raise InputError(f"{message}; see {self.prog} --help")


def parse(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses a command's own flags; returns them and the `--config.FIELD=VALUE` overrides."""
    arguments, rest = parser.parse_known_args(_joined(argv))
    overrides = [word for word in rest if word.startswith("--config.")]
    for word in rest:
        if word not in overrides:
            flags = [f for action in parser._actions for f in action.option_strings]
            hint = _nearest(word.partition("=")[0], flags)
            raise InputError(
                f"{_shortened(word)} is not understood{hint}; see {parser.prog} --help"
            )
    return arguments, overrides


def load_module(config_flag: str, root: pathlib.Path) -> tuple[types.ModuleType, str]:
    """The configuration file named by `--config=FILE[:VARIANT]`, imported, and the variant.

    Args:
        config_flag: the flag's value; FILE is looked up from here, then from `root`.
        root: the checkout.
    """
    name, _, variant = config_flag.partition(":")
    for path in (pathlib.Path(name), root / name):
        if path.suffix == ".py" and _is_readable_file(path):
            spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
            module = importlib.util.module_from_spec(spec)
            with errors_of_file(path):
                spec.loader.exec_module(module)
            if hasattr(module, "get_config"):
                return module, variant
    files = sorted(f"configs/{p.name}" for p in (root / "configs").glob("*.py") if _is_config(p))
    raise InputError(
        f"--config={_shortened(name)} is no configuration file that can be read; give one of "
        f"{', '.join(files)}, "
        "or a Python file of your own with get_config()"
    )


@contextlib.contextmanager
def errors_of_file(path: str | os.PathLike) -> Iterator[None]:
    """Makes an error raised by the code of a configuration file an InputError, with the error's own
    message and the line of that file."""
    try:
        yield
    except (Exception, SystemExit) as error:
        where = _place(error, os.path.abspath(path))
        message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
        kind = type(error).__name__
        raise InputError(
            f"the configuration file has an error at {where}: "
            f"{kind}{': ' if message else ''}{message}; correct it there"
        ) from error


def _place(error: BaseException, path: str) -> str:
    """'FILE, line N' of an error: the last line of the file at `path` that it went through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == path]
    return f"{path}, line {own[-1]}" if own else path


def load_config(
    config_flag: str, overrides: Sequence[str], fields: Fields, root: pathlib.Path
) -> tuple[ml_collections.ConfigDict, types.ModuleType]:
    """The resolved configuration and the file it came from."""
    module, variant = load_module(config_flag, root)
    with errors_of_file(module.__file__):
        config = module.get_config(variant) if variant else module.get_config()
    if not isinstance(config, ml_collections.ConfigDict):
        raise InputError(
            f"get_config() of {module.__file__} returns a {type(config).__name__}; allowed: a "
            "ConfigDict that starts from configs.base.get_config()"
        )
    for field in fields:
        try:
            get_field(config, field.name)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"get_config() of {module.__file__} returns no field {field.name}; start from "
                "configs.base.get_config(), which has all"
            ) from error
    override(config, overrides, fields)
    return config, module


def override(config: ml_collections.ConfigDict, overrides: Sequence[str], fields: Fields) -> None:
    """Sets the fields of '--config.FIELD=VALUE' words; InputError for one that cannot be."""
    for word in overrides:
        name, equals, text = word.removeprefix("--config.").partition("=")
        if not equals:
            name = _shortened(name)
            raise InputError(f"--config.{name} has no value; write --config.{name}=VALUE")
        set_field(config, name, text, fields)


def set_field(config: ml_collections.ConfigDict, name: str, value: object, fields: Fields) -> None:
    """Sets one field, from text or a value, to the type of its default.

    Raises:
        InputError: no such field, or a value that it cannot have.
    """
    known = {field.name: field for field in fields}
    if name not in known:
        raise InputError(
            f"there is no field config.{_shortened(name)}{_nearest(name, known)}; see --help"
        )
    try:
        value = known[name].read(value)
    except ValueError as error:
        raise InputError(str(error)) from error
    *parents, leaf = name.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    node[leaf] = value


def get_field(config: ml_collections.ConfigDict, name: str) -> object:
    """The value of a field such as 'echo.factor'."""
    node = config
    for part in name.split("."):
        node = node[part]
    return node


def _nearest(name: str, known) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not close:  # the last part may be right, and the group wrong
        leaf = name.rpartition(".")[2]
        close = [k for k in known if k.rpartition(".")[2] == leaf]
    return f" (did you mean {close[0]}?)" if close else ""


def _joined(argv: Sequence[str]) -> list[str]:
    """`--config.a value` written as two words becomes `--config.a=value`."""
    words: list[str] = []
    for word in argv:
        open_override = words and words[-1].startswith("--config.") and "=" not in words[-1]
        if open_override and not word.startswith("--"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def _is_readable_file(path: pathlib.Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.R_OK)
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        return False


def _shortened(text: str, most: int = 200) -> str:
    """Text in a message: in quotes where it would not print, and not at length."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _is_config(path: pathlib.Path) -> bool:
    return path.name not in ("__init__.py", "base.py", "fields.py", "studies.py")


def _describe(fields: Fields) -> str:
    lines = ["fields of the configuration (override with --config.FIELD=VALUE) and defaults:"]
    for field in fields:
        lines.append(f"  {field.name} = {field.default!r}")
        lines.append(f"{'':8}{field.help}")
        lines.append(f"{'':8}allowed: {field.allowed_words}")
    return "\n".join(lines)
