"""What all commands share: flags, configurations, help on every field, errors in one sentence."""

import argparse
import contextlib
import difflib
import errno
import functools
import hashlib
import importlib.util
import os
import pathlib
import re
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import ml_collections

from configs import base
from echo.spec import abbreviated
from runs import records, signals
from runs.progress import surviving_output, write
from runs.records import flat, nested, plain

ROOT = pathlib.Path(__file__).resolve().parents[1]  # the checkout

OWN_FILES: dict[str, str] = {}  # paths of configuration files outside of it, with their SHA-256s

OK, WRONG_INPUT, DIVERGED, FAILED, PREEMPTED = 0, 2, 3, 4, signals.PREEMPTED
EXIT_CODES = {"reached": OK, "exhausted": OK, "diverged": DIVERGED}
EXIT_CODES |= {"failed": FAILED, "preempted": PREEMPTED}


class InputError(Exception):
    """The user's input is wrong; the message is one sentence that says what to do instead."""


class Failed(Exception):
    """The command cannot continue; the message is one sentence that says why, and what to do."""


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# TensorStore, which writes checkpoints, puts the number into its messages.
_CODE_OF_TENSORSTORE = re.compile(r"os_error_code='(\d+)'")


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is a full disk, an exhausted quota, or a file that is
    larger than allowed."""
    while error is not None:
        codes = {getattr(error, "errno", None), *map(int, _CODE_OF_TENSORSTORE.findall(str(error)))}
        if not codes.isdisjoint(_DISK_FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def explained(error: Exception) -> Exception:
    """The InputError or Failed that says what an error of files or memory means; any other error
    itself."""
    if isinstance(error, InputError | Failed):
        return error
    if isinstance(error, records.Damaged):
        return InputError(f"{error}; restore it from a copy, or give another directory")
    if is_disk_full(error):
        return Failed(
            "no space is left on the disk, or your quota or limit of file sizes is reached "
            f"({error}); free some, or raise the limit, and start the same command again to resume"
        )
    out_of_memory = "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
    of_device = type(error).__name__ == "JaxRuntimeError" and out_of_memory
    if of_device or isinstance(error, MemoryError):
        return InputError(
            f"{'a device' if of_device else 'this machine'} has no memory left; lower "
            "config.batch_size, make the network of config.model or what echoing keeps smaller, or "
            f"set config.dtype=bfloat16 ({str(error).partition(chr(10))[0]})"
        )
    if isinstance(error, OSError) and error.filename:
        path = plain(error.filename, 400)  # long enough for its end, which says most
        return InputError(f"{path} cannot be used ({error.strerror}); give another path")
    return error


def guarded(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, whether or not its output can be written.

    Wrong input prints one sentence to standard error and returns 2, Failed 4, Ctrl-C 130.
    """
    before = signal.getsignal(signal.SIGINT)
    signals.install(signals.raise_once)
    try:
        with surviving_output():
            return main(sys.argv[1:] if argv is None else argv)
    except Exception as error:
        known = explained(error)
        if not isinstance(known, InputError | Failed):
            raise
        write(f"error: {plain(known)}", sys.stderr)
        return FAILED if isinstance(known, Failed) else WRONG_INPUT
    except KeyboardInterrupt:
        write("interrupted", sys.stderr)
        return signals.INTERRUPTED
    finally:
        signals.install(before)


def directory(text: str) -> pathlib.Path:
    """The value of a flag that names a directory to write to, which may start with ~; raises
    InputError for a URL, and for an empty name, which would be the current directory."""
    if not text or not text.isprintable() or "://" in text:
        raise InputError(
            f"{abbreviated(text)} is not a directory to write to; give one, such as out/run "
            "(--mirror=URL keeps a copy elsewhere)"
        )
    return expanded(text)


def expanded(path: str | os.PathLike) -> pathlib.Path:
    """A path whose ~ or ~USER is replaced; raises InputError if there is no such user."""
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{abbreviated(str(path))}: there is no such user") from error


class Parser(argparse.ArgumentParser):
    """An argument parser that raises InputError."""

    def __init__(self, description: str | None):
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, formatter_class=form, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def parse(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """A command's own flags, and the overrides --config.FIELD=VALUE, which `load_config` reads;
    raises InputError for a flag that does not exist, or that cannot have its value."""
    if {"-h", "--help"} & {*argv}:
        _describe_fields(parser, argv)
    arguments, overrides = parser.parse_known_args(argv)
    for word in argv:  # of '--', argparse would make an empty list
        name, equals, value = word.partition("=")
        of_field = name.startswith("--config.")
        unknown = word in overrides and not (of_field and equals)
        if unknown or value == "--":
            hint = _suggestion(name, parser._option_string_actions) if unknown else ""
            hint = f"; write {plain(name, 80)}=VALUE" if of_field else hint
            parser.error(f"{abbreviated(word)} is not understood{hint}")
    return arguments, overrides


def _describe_fields(parser: Parser, argv: Sequence[str]) -> None:
    """Adds every field to the help of a command, with its value in the file of --config=FILE."""
    flags = [word.partition("=")[2] for word in argv if word.startswith("--config=")]
    flag = "".join(flags[-1:])
    config = load_config(flag)[0] if flag else base.get_config()
    parser.usage = "%(prog)s --FLAG=VALUE ... --config.FIELD=VALUE ..."
    title = f"fields, now as in {flag or 'configs/base.py, from which all files start'}"
    group = parser.add_argument_group(title)
    for field in sorted(base.FIELDS, key=lambda field: not field.name.startswith("echo.")):
        text = f"{field.help}; allowed: {field.allowed} (now {nested(config, field.name)!r})"
        group.add_argument(f"--config.{field.name}", metavar="VALUE", help=text.replace("%", "%%"))


def load_module(config_flag: str) -> tuple[types.ModuleType, str]:
    """Imports the configuration file of `--config=FILE[:VARIANT]`, once per process.

    Args:
        config_flag: the flag's value. FILE is resolved against the working directory, then ROOT.

    Returns:
        The module and the variant.

    Raises:
        InputError: there is no such file, or its code has an error.
    """
    name, _, variant = config_flag.partition(":")
    for path in (expanded(name), ROOT / name):
        # os.path is false, and raises nothing, where a name is too long or contains a zero byte
        if path.suffix == ".py" and os.path.isfile(path) and os.access(path, os.R_OK):
            module = _imported(path.resolve())
            if hasattr(module, "get_config"):
                return module, variant
    raise InputError(
        f"--config={abbreviated(name)} is not a readable configuration file; give one of configs/, "
        "such as configs/cifar10.py, or your own Python file with get_config()"
    )


@functools.cache
def _imported(path: pathlib.Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up postponed annotations
    with errors_of_file(path):
        spec.loader.exec_module(module)
        if not path.is_relative_to(ROOT):  # where Git knows it
            OWN_FILES[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return module


@contextlib.contextmanager
def errors_of_file(path: str | os.PathLike) -> Iterator[None]:
    """Replaces an error that a configuration file raises by InputError, which names the line."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        where = os.path.abspath(path)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if os.path.abspath(f.filename) == where]
        where += f", line {lines[-1]}" if lines else ""
        # ml_collections lists all fields and their values between the field and its suggestion
        message = re.sub(r"(?s)(does not exist).*?(Did you mean|$)", r"\1. \2", str(error))
        raise InputError(
            f"the configuration file has an error at {where}: {type(error).__name__}: "
            f"{plain(message, 500)}; correct it there"
        ) from error


def load_config(
    config_flag: str, overrides: Sequence[str] = ()
) -> tuple[ml_collections.ConfigDict, types.ModuleType]:
    """The resolved configuration, and the module that it came from."""
    module, variant = load_module(config_flag)
    file = str(module.__file__)
    with errors_of_file(file):
        try:
            config = module.get_config(variant) if variant else module.get_config()
        except ValueError as error:  # there is no such variant
            raise InputError(f"--config={config_flag}: {error}") from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise InputError(
            f"get_config() of {file} returns {abbreviated(config)}; allowed: a ConfigDict that "
            "starts from configs.base.get_config()"
        )
    given, known = flat(config.to_dict()), {field.name for field in base.FIELDS}
    for name in sorted({*given} ^ known):
        raise InputError(
            f"get_config() of {file} returns {'a' if name in given else 'no'} field {name}"
            f"{_suggestion(name, known - {name})}; start from configs.base.get_config(), and add "
            "fields with configs.base.add"
        )
    override(config, overrides)
    return config, module


def override(config: ml_collections.ConfigDict, overrides: Sequence[str]) -> None:
    """Applies overrides of the form '--config.FIELD=VALUE'; raises InputError for a wrong one.

    The splits of a configuration are those of its data set, so own data have none but those given.
    """
    given = dict(word.removeprefix("--config.").split("=", 1) for word in overrides)
    if base.is_own_data(given.get("dataset.name", "")):
        given = {f"dataset.{name}_split": "" for name in ("train", "validation", "test")} | given
    config.update_from_flattened_dict({name: read(name, text) for name, text in given.items()})


def set_field(config: ml_collections.ConfigDict, name: str, value: Any) -> None:
    """Sets the field `name` (such as 'echo.factor') to a value, which may be given as text; raises
    InputError if there is no such field, or if it cannot have this value."""
    config.update_from_flattened_dict({name: read(name, value)})


def read(name: str, value: Any) -> Any:
    """A field's value, which may be given as text, in its type; raises InputError."""
    known = {field.name: field for field in base.FIELDS}
    if name not in known:
        raise InputError(
            f"there is no field config.{plain(name)}{_suggestion(name, known)}; see --help"
        )
    try:
        return known[name].read(value)
    except ValueError as error:
        raise InputError(str(error)) from error


def _suggestion(name: str, known: Iterable[str]) -> str:
    known = list(known)
    leaf = name.rpartition(".")[2]  # perhaps right, in another group
    close = difflib.get_close_matches(name, known, n=1)
    close += [other for other in known if other.rpartition(".")[2] == leaf]
    return f" (did you mean {close[0]}?)" if close else ""
