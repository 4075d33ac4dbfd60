"""What all commands share: configurations, help on every field, and errors in one sentence."""

import argparse
import contextlib
import difflib
import errno
import functools
import importlib.util
import inspect
import os
import pathlib
import re
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import ml_collections

from runs import records, signals, terminal
from runs.study import flat, plain

ROOT = pathlib.Path(__file__).resolve().parents[1]  # the checkout

OK, WRONG_INPUT, DIVERGED, FAILED, PREEMPTED = 0, 2, 3, 4, signals.PREEMPTED
EXIT_CODES = {
    "reached": OK,
    "exhausted": OK,
    "diverged": DIVERGED,
    "failed": FAILED,
    "preempted": PREEMPTED,
}


class Field(Protocol):
    """What commands need to know about a field of the configuration; see configs/fields.py."""

    @property
    def name(self) -> str: ...

    @property
    def default(self) -> Any: ...

    @property
    def help(self) -> str: ...

    @property
    def range_text(self) -> str: ...

    def read(self, value: Any) -> Any:
        """`value`, or the value that it represents as text, in the field's type.

        Raises:
            ValueError: the field cannot have this value; the message says what is allowed.
        """


Fields = Sequence[Field]


class InputError(Exception):
    """The user's input is wrong; the message is one sentence that says what to do instead."""


class Failed(Exception):
    """The command cannot continue; the message is one sentence that says why, and what to do."""


class DiskFull(Failed):
    """A disk is full; the message says which."""


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is a full disk, an exhausted quota, or a file that is
    larger than allowed."""
    while error is not None:
        if getattr(error, "errno", None) in _DISK_FULL:
            return True
        # Orbax passes on only the text of the system's error
        if any(os.strerror(code) in str(error) for code in _DISK_FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def disk_full_named(where: pathlib.Path) -> Iterator[None]:
    """Replaces an error that a full disk caused by DiskFull, which names the directory."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DiskFull) or not is_disk_full(error):
            raise
        raise DiskFull(f"{_no_space(f'the disk of {where}')} to resume") from error


def _no_space(disk: str) -> str:
    return (
        f"no space is left on {disk}, or your quota or limit of file sizes is reached; free some, "
        "or raise the limit, and start the same command again"
    )


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def directory(text: str) -> pathlib.Path:
    """The value of a flag that names a directory to write to; raises InputError for a URL, and for
    an empty name, which would be the current directory."""
    if not text:
        raise InputError("the name of a directory to write to is empty; give one, such as out/run")
    _refuse_url(_shortened(text))
    return pathlib.Path(text)


def expanded(path: str | os.PathLike) -> pathlib.Path:
    """A path whose ~ or ~USER is replaced; raises InputError if there is no such user."""
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(
            f"{_shortened(str(path))} is in the home directory of a user who does not exist; give "
            "another path"
        ) from error


def is_url(name: str) -> bool:
    """Whether a path is a URL, also one whose slashes pathlib has merged."""
    return bool(_URL.match(name))


def _refuse_url(name: str) -> None:
    if is_url(name):
        raise InputError(
            f"{name} is a URL; give a directory (train.py and sweep.py copy theirs to a URL with "
            "--mirror)"
        )


@contextlib.contextmanager
def writing_to(directory: pathlib.Path) -> Iterator[None]:
    """Replaces a file system's error by InputError, which names the directory."""
    name = _shortened(str(directory))
    _refuse_url(name)
    if "\0" in str(directory):
        raise InputError(f"{name} contains a zero byte; give a directory's name")
    try:
        os.path.abspath(directory).encode()
    except UnicodeEncodeError as error:  # Orbax cannot write there
        raise InputError(f"{name} is not valid UTF-8; give a directory whose path is") from error
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise
        raise InputError(
            f"{name} cannot be used ({error.strerror or error}); give a directory that is writable"
        ) from error


@contextlib.contextmanager
def damage_explained(what: str, advice: str = "restore that file from a copy") -> Iterator[None]:
    """Replaces records.Damaged by InputError, which says what is damaged, and what to do."""
    try:
        yield
    except records.Damaged as error:
        raise InputError(f"{what} is damaged ({error}); {advice}") from error


# Errors of the file system that mean that the user gave a wrong path.
_WRONG_PATH = (
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EEXIST),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
)


def explained(error: Exception) -> Exception:
    """The InputError or Failed that says what an error of files means; any other error itself."""
    if isinstance(error, InputError | Failed):
        return error
    if isinstance(error, records.Damaged):
        return InputError(str(error))
    if is_disk_full(error):
        return DiskFull(_no_space("the disk"))
    if isinstance(error, OSError) and error.errno in _WRONG_PATH:
        where = f": {_shortened(str(error.filename))}" if error.filename else ""
        return InputError(f"{error.strerror}{where}; give another path")
    return error


def guarded(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, whether or not its output can be written.

    Wrong input prints one sentence to standard error and returns 2, Failed 4, Ctrl-C 130.
    """
    terminal.survive_hangup()
    terminal.escape_what_cannot_be_encoded()
    before = signal.getsignal(signal.SIGINT)
    signals.install(signals.raise_once)
    try:
        return main(sys.argv[1:] if argv is None else argv)
    except Exception as error:
        known = explained(error)
        if not isinstance(known, InputError | Failed):
            raise
        terminal.write(f"error: {plain(str(known))}", sys.stderr)
        return FAILED if isinstance(known, Failed) else WRONG_INPUT
    except KeyboardInterrupt:
        terminal.write("interrupted", sys.stderr)
        return signals.INTERRUPTED
    finally:
        signals.install(before)
        terminal.flush()


def answer_early(parse: Callable[[Sequence[str]], Any]) -> None:
    """Answers --help and wrong flags, and ends the process; returns if the flags are right.

    Commands call it before their slow imports.

    Args:
        parse: parses the flags; `main` calls it again.
    """

    def parsed(argv: Sequence[str]) -> int:
        parse(argv)
        return OK

    if code := guarded(parsed):
        sys.exit(code)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises InputError and whose help lists the configuration's fields,
    with the values of the configuration if `--config` comes with `--help`."""

    def __init__(self, description: str | None, fields: Fields = ()):
        self.fields = fields
        super().__init__(
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_known_args(self, args=None, namespace=None):
        words = []
        for word in sys.argv[1:] if args is None else args:
            flag, equals, value = word.partition("=")
            if value == "--" and flag.startswith("--"):  # argparse would make it an empty list
                self.error(f"argument {flag}: '--' is not a value")
            if value.startswith("~") and not flag.startswith("--config."):  # left by the shell
                value = os.fspath(expanded(value))
            words.append(f"{flag}{equals}{value}")
        if self.fields and {"-h", "--help"} & {*words}:
            # argparse prints the help before it has read a --config that comes later.
            flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
            flags.add_argument("--config", nargs="?")
            self.epilog = _help_on(self.fields, flags.parse_known_args(words)[0].config)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def parse(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses a command's own flags; returns them and the `--config.FIELD=VALUE` overrides.

    Raises:
        InputError: a flag that does not exist, or that cannot have its value.
    """
    arguments, rest = parser.parse_known_args(_join_overrides(argv))
    overrides = [word for word in rest if word.startswith("--config.")]
    for word in rest:
        if word not in overrides:
            flags = [f for action in parser._actions for f in action.option_strings]
            hint = _suggestion(word.partition("=")[0], flags)
            raise InputError(
                f"{_shortened(word)} is not understood{hint}; see {parser.prog} --help"
            )
    for word in overrides:
        _read_override(word, parser.fields)
    return arguments, overrides


def config_file(config_flag: str) -> pathlib.Path:
    """The path of the file that `--config=FILE[:VARIANT]` names.

    Args:
        config_flag: the flag's value. FILE is resolved against the working directory, then ROOT.

    Raises:
        InputError: there is no such file.
    """
    name = config_flag.partition(":")[0]
    for path in (pathlib.Path(name), ROOT / name):
        # os.path is false, and raises nothing, where a name is too long or contains a zero byte
        if path.suffix == ".py" and os.path.isfile(path) and os.access(path, os.R_OK):
            return path
    raise _no_config_file(name)


def load_module(config_flag: str) -> tuple[types.ModuleType, str]:
    """Imports the configuration file named by `--config=FILE[:VARIANT]`.

    Args:
        config_flag: see `config_file`.

    Returns:
        The module and the variant.
    """
    name, _, variant = config_flag.partition(":")
    path = config_file(config_flag)
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up postponed annotations
    with errors_of_file(path):
        spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise _no_config_file(name)
    return module, variant


def _no_config_file(name: str) -> InputError:
    others = ("__init__.py", "base.py", "catalog.py", "fields.py")
    paths = sorted((ROOT / "configs").glob("*.py"))
    files = ", ".join(f"configs/{path.name}" for path in paths if path.name not in others)
    return InputError(
        f"--config={_shortened(name)} is not a readable configuration file; give one of {files}, "
        "or your own Python file with get_config()"
    )


@contextlib.contextmanager
def errors_of_file(path: str | os.PathLike) -> Iterator[None]:
    """Replaces an error that a configuration file raises by InputError, which names the line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        where = _location(error, os.path.abspath(path))
        raise InputError(
            f"the configuration file has an error at {where}: {_in_words(error)}; correct it there"
        ) from error


def _in_words(error: BaseException) -> str:
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    # ml_collections lists all fields and their values, and quotes the whole.
    if isinstance(error, AttributeError | KeyError):
        if close := re.search(r'Did you mean "([^"]*)" instead of "([^"]*)"', message):
            return f"there is no field {close[2]} (did you mean {close[1]}?)"
        if unknown := re.search(r'Key "([^"]*)" does not exist', message):
            return f"there is no field {unknown[1]}"
    return f"{type(error).__name__}{': ' if message else ''}{message}"


def _location(error: BaseException, path: str) -> str:
    """'FILE, line N' of an error: the last line of the file at `path` in its traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == path]
    return f"{path}, line {own[-1]}" if own else path


def load_config(
    config_flag: str, overrides: Sequence[str], fields: Fields
) -> tuple[ml_collections.ConfigDict, types.ModuleType]:
    """The resolved configuration, and the module that it came from."""
    module, variant = load_module(config_flag)
    file = str(module.__file__)
    if variant and not _takes(module.get_config, variant):
        raise InputError(
            f"--config is {config_flag}, but get_config() of {file} has no variants; leave out "
            f":{variant}"
        )
    try:
        with errors_of_file(file):
            config = module.get_config(variant) if variant else module.get_config()
    except InputError as error:
        if isinstance(error.__cause__, ValueError):
            message = str(error.__cause__)
            named = repr(variant) if variant else "variant ''"
            if named in message:  # not an error of the file
                raise InputError(f"--config is {config_flag}: {message}") from error
        raise
    if not isinstance(config, ml_collections.ConfigDict):
        raise InputError(
            f"get_config() of {file} returns a value of type {type(config).__name__}; allowed: a "
            "ConfigDict that starts from configs.base.get_config()"
        )
    given = flat(config.to_dict())
    for field in fields:
        if field.name not in given:
            raise InputError(
                f"get_config() of {file} returns no field {field.name}; start from "
                "configs.base.get_config(), which has all fields"
            )
    if unknown := unknown_fields(config.to_dict(), fields):
        raise InputError(
            f"get_config() of {file} returns a field {unknown[0]}, which does not exist"
            f"{_suggestion(unknown[0], [field.name for field in fields])}; leave it out"
        )
    override(config, overrides, fields)
    return config, module


def _takes(function: Callable[..., Any], argument: Any) -> bool:
    """Whether a function can be called with one argument."""
    try:
        inspect.signature(function).bind(argument)
    except TypeError:
        return False
    return True


def unknown_fields(config: Mapping[str, Any], fields: Fields) -> list[str]:
    """The names in a nested configuration that are no fields."""
    known = {field.name for field in fields}
    return [name for name in flat(config) if name not in known]


def override(config: ml_collections.ConfigDict, overrides: Sequence[str], fields: Fields) -> None:
    """Applies overrides of the form '--config.FIELD=VALUE'; raises InputError for a wrong one."""
    for word in overrides:
        name, value = _read_override(word, fields)
        set_field(config, name, value, fields)


def _read_override(word: str, fields: Fields) -> tuple[str, Any]:
    """Name and value of an override; raises InputError."""
    name, equals, text = word.removeprefix("--config.").partition("=")
    if not equals:
        name = _shortened(name)
        raise InputError(f"--config.{name} has no value; write --config.{name}=VALUE")
    return name, _read(name, text, fields)


def set_field(config: ml_collections.ConfigDict, name: str, value: Any, fields: Fields) -> None:
    """Sets the field `name` (such as 'echo.factor') to a value, which may be given as text.

    Raises:
        InputError: there is no such field, or it cannot have this value.
    """
    value = _read(name, value, fields)
    parent, _, leaf = name.rpartition(".")
    (get_field(config, parent) if parent else config)[leaf] = value


def _read(name: str, value: Any, fields: Fields) -> Any:
    """A field's value, which may be given as text, in its type; raises InputError."""
    known = {field.name: field for field in fields}
    if name not in known:
        raise InputError(
            f"there is no field config.{_shortened(name)}{_suggestion(name, known)}; see --help"
        )
    try:
        return known[name].read(value)
    except ValueError as error:
        raise InputError(str(error)) from error


def get_field(config: ml_collections.ConfigDict, name: str) -> Any:
    """The value of a field such as 'echo.factor'."""
    return functools.reduce(lambda node, part: node[part], name.split("."), config)


def _suggestion(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not close:  # perhaps the last part is right and the group is wrong
        leaf = name.rpartition(".")[2]
        close = [k for k in known if k.rpartition(".")[2] == leaf]
    return f" (did you mean {close[0]}?)" if close else ""


def _join_overrides(argv: Sequence[str]) -> list[str]:
    """Joins `--config.a value` into `--config.a=value`."""
    words: list[str] = []
    for word in argv:
        open_override = words and words[-1].startswith("--config.") and "=" not in words[-1]
        if open_override and not word.startswith("--"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def is_whole_number(text: str, max_digits: int = 18) -> bool:
    """Whether text is a whole number of a sensible length; '²' and 5,000 digits are not."""
    return text.isascii() and text.isdigit() and len(text) <= max_digits


def _shortened(text: str, max_length: int = 200) -> str:
    """Text for a message: printable, and of limited length."""
    text = text if text.isprintable() else repr(text)
    if len(text) <= max_length:
        return text
    return f"{text[:max_length]}... ({len(text)} characters)"


def _help_on(fields: Fields, config_flag: str | None) -> str:
    """The fields, those of echoing first, with the values of a configuration or the defaults."""
    config, title = None, "and the defaults that FILE starts from (--config=FILE --help: its own)"
    if config_flag:
        config, _ = load_config(config_flag, [], fields)
        title = f"and the values of {config_flag}"
    lines = [f"configuration fields (--config.FIELD=VALUE) {title}:"]
    for field in sorted(fields, key=lambda field: not field.name.startswith("echo.")):
        value = get_field(config, field.name) if config else field.default
        lines.append(f"  {field.name} = {value!r}")
        lines.append(f"{'':8}{field.help}")
        lines.append(f"{'':8}allowed: {field.range_text}")
    return "\n".join(lines)
