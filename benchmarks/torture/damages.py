"""Damages one file of a run or study at rest, then runs a command on the directory.

Survived: the results of an undamaged directory, a warning that names what is lost, or exit code 2
with nothing changed. Anything else is a fault, unless nothing could have noticed the damage. An
outcome is `undetectable` if it differs without a message and the damaged file

* is not covered by a checksum: config.json, hparams.json, study.json, result.json,
  evaluation.json, or metrics.jsonl of a finished run;
* and is still JSON with the same keys, lengths, and types of values: a digit or a letter of a value
  has changed.
"""

import functools
import gc
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import sweep
import train
from analysis import __main__ as analysis
from benchmarks.torture import endings, forks, ledger
from runs import cli, records
from training import run

_CONFIG = "--config=benchmarks/torture/small.py:logistic"
_ECHO = ("--config.echo.insertion=before_augmentation", "--config.echo.factor=2")
_ECHO += ("--config.echo.shuffle_buffer=40",)
_STUDY = ("--study=small", "--config.budget.fresh_examples=128")
_KILLED_AT = (2, 7, 11)  # steps, of 12: before and after the first checkpoint
_CASES_PER_PROCESS = 100


def _argv(flag: str, directory: pathlib.Path) -> list[str]:
    return [_CONFIG, *(_ECHO if flag == "--workdir" else _STUDY), f"{flag}={directory}"]


def _train(directory: pathlib.Path) -> int:
    return cli.guarded(train.main, _argv("--workdir", directory))


def _evaluate(directory: pathlib.Path) -> int:
    return cli.guarded(train.main, ["--evaluate", str(directory)])


def _sweep(directory: pathlib.Path) -> int:
    return cli.guarded(sweep.main, _argv("--outdir", directory))


def _analyze(directory: pathlib.Path) -> int:
    out = directory.with_name("report")
    return cli.guarded(analysis.main, [str(directory), f"--out={out}"])


# --- what is compared, given the directory and the output of the command


def _after_train(directory: pathlib.Path, output: str) -> Any:
    """The outcome of the run; only its result if the command reported an already finished run."""
    if "already finished" in output:
        return {"result": endings.of_result(directory)}
    return endings.of_run(directory)


def _after_evaluate(directory: pathlib.Path, output: str) -> Any:
    with np.load(directory / records.PARAMETERS) as arrays:
        hashes = {k: hashlib.sha256(arrays[k].tobytes()).hexdigest() for k in sorted(arrays)}
    # includes the last line of output, because an existing evaluation is only printed
    line = output.splitlines()[-1:]
    return {"evaluation": records.read_json(directory / records.EVALUATION), "line": line} | hashes


def _after_sweep(directory: pathlib.Path, output: str) -> Any:
    trials = records.trials_on_disk(directory)
    return {str(w.relative_to(directory)): endings.of_result(w) for _, w in trials}


def _after_analysis(directory: pathlib.Path, output: str) -> Any:
    out = directory.with_name("report")
    return {path.name: path.read_text() for path in sorted(out.glob("*.csv"))}


# (state of the directory, command, its function, the outcome to compare)
_ATTEMPTS = (
    *(("killed", "train.py", _train, _after_train),) * 4,
    ("finished", "train.py", _train, _after_train),
    ("finished", "train.py --evaluate", _evaluate, _after_evaluate),
    ("evaluated", "train.py --evaluate", _evaluate, _after_evaluate),
    ("study killed", "sweep.py", _sweep, _after_sweep),
    ("study finished", "sweep.py", _sweep, _after_sweep),
    ("study killed", "analysis", _analyze, _after_analysis),
    ("study finished", "analysis", _analyze, _after_analysis),
    ("finished", "analysis", _analyze, _after_analysis),
)


# What a line contains that names a loss.
_NAMED = "warning|damaged|cannot be|left out|set aside|without a result|without its|are missing"
_NAMED += "|so far, since"


class Damages:
    """Damages by number, done to copies of template directories."""

    def __init__(self, directory: pathlib.Path, faults: pathlib.Path):
        self._directory, self._faults = directory, faults
        self._templates = directory / "templates"
        self._expected: dict[str, tuple[Any, str]] = {}  # what follows, and the output

    def attempts(self, seed: int, numbers: range) -> Iterator[dict[str, Any]]:
        """Tries the cases `numbers`; yields their records for the ledger."""
        if not self._templates.exists():
            self._make_templates()
        attempt = functools.partial(self._one, seed)
        for number, record in forks.in_batches(
            numbers, attempt, self._directory, _CASES_PER_PROCESS
        ):
            if "outcome" not in record:
                damage, kept = self._damaged(seed, number), self._keep(seed, number)
                outcome = ledger.HANG if "hangs" in record else ledger.TRACEBACK
                record = {"group": damage[1], "case": damage[-1], "outcome": outcome} | {
                    "detail": str(record),
                    "kept": kept,
                }
            yield record | {"index": number, "count": 1}

    def _make_templates(self) -> None:
        """Makes the killed directories in processes that kill themselves; then, in one process, the
        finished ones and the outcomes without damage."""
        self._templates.mkdir(parents=True)
        output, case = self._directory / "templates.txt", self._case()
        killed = {f"killed {step}": (step, _train) for step in _KILLED_AT}
        for state, (step, act) in (killed | {"study killed": (17, _sweep)}).items():
            process = forks.fork(lambda s=step, a=act: _dying(s, a, case), output)
            if process.wait() != -signal.SIGKILL:
                raise RuntimeError(output.read_text())
            process.end_group()
            case.rename(self._templates / state)
        self._expected = forks.computed(self._undamaged, self._directory)

    def _undamaged(self) -> dict[str, Any]:
        """Makes the finished templates; returns undamaged outcomes by state and command."""
        case = self._case()
        for state, acts in (
            ("finished", (_train,)),
            ("evaluated", (_train, _evaluate)),
            ("study finished", (_sweep,)),
        ):
            if codes := [code for act in acts if (code := act(case))]:
                raise RuntimeError(f"making {state!r} ended with {codes}")
            case.rename(self._templates / state)
        return {
            f"{state} {name}": self._run(self._template(state, random.Random(0)), act, after)
            for state, name, act, after in dict.fromkeys(_ATTEMPTS)
        }

    def _run(self, template: pathlib.Path, act, after) -> Any:
        case = self._case()
        shutil.copytree(template, case)
        with forks.captured() as captured:
            code = act(case)
            text = captured()
        if code:
            raise RuntimeError(f"without damage, it ended with {code}: {text}")
        return after(case, text), text

    def _case(self) -> pathlib.Path:
        case = self._directory / "case"
        for path in (case, case.with_name("report")):
            shutil.rmtree(path, ignore_errors=True)
        return case

    def _template(self, state: str, rng: random.Random) -> pathlib.Path:
        return self._templates / (
            f"killed {rng.choice(_KILLED_AT)}" if state == "killed" else state
        )

    def _damaged(self, seed: int, number: int):
        """Damages a copy: (state, command, act, after, damaged file, intact file, description)."""
        rng = random.Random(f"{seed} damages {number}")
        state, name, act, after = rng.choice(_ATTEMPTS)
        template, case = self._template(state, rng), self._case()
        shutil.copytree(template, case)
        path, how = _damage(case, rng)
        relative = path.relative_to(case)
        description = f"{name} on {template.name}: {relative} {how}"
        return state, name, act, after, path, template / relative, description

    def _one(self, seed: int, number: int) -> dict[str, Any]:
        state, name, act, after, path, intact, description = self._damaged(seed, number)
        case = self._directory / "case"
        before, detail = _tree(case), ""
        with forks.captured() as captured:
            try:
                code = act(case)
            except SystemExit as error:
                code = error.code
            except BaseException as error:  # Python would print a traceback
                code = f"Traceback: {type(error).__name__}: {error}"
            gc.collect()  # finalizers may print
            text = captured()
        outcome = _judged(code, text, before, case)
        if outcome is None:
            try:
                ending = after(case, text)
                detail = endings.difference(ending, self._like(ending, state, name))
            except Exception as error:
                detail = f"{type(error).__name__}: {error}"
            _, usual = self._expected[f"{state} {name}"]
            added = "\n".join(line for line in text.splitlines() if line not in usual.splitlines())
            outcome = _explained(detail, added, path, intact)
        record = {"group": name, "case": description, "outcome": outcome}
        if outcome not in (ledger.EQUAL, ledger.NAMED):
            record["detail"] = f"{code} {detail} {text[-1500:]}"
        if outcome in ledger.FAULTS:
            record["kept"] = self._keep(seed, number)
        return record

    def _like(self, ending: Any, state: str, name: str) -> Any:
        if name == "train.py" and state == "finished" and set(ending) != {"result"}:
            state = "killed"  # it was trained again
        return self._expected[f"{state} {name}"][0]

    def _keep(self, seed: int, number: int) -> str:
        """Repeats the damage on a copy that is kept for inspection."""
        kept = self._faults / f"damages-{seed}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        self._damaged(seed, number)
        shutil.copytree(self._directory / "case", kept)
        return str(kept)


def _judged(code: Any, text: str, before: dict[str, Any], case: pathlib.Path) -> str | None:
    """The outcome that follows from exit code and output; None if the results decide."""
    if re.search("^Traceback", text, re.MULTILINE) or str(code).startswith("Traceback"):
        return ledger.TRACEBACK
    if code == cli.OK:
        return None
    if code == cli.WRONG_INPUT:
        untouched = _tree(case) == before and not case.with_name("report").exists()
        return ledger.NAMED if untouched else ledger.DIFFERING
    if (case / "error.txt").exists():  # an unexpected error that was caught
        return ledger.TRACEBACK
    return ledger.NAMED if code == cli.FAILED else ledger.TRACEBACK


def _explained(detail: str, added: str, path: pathlib.Path, intact: pathlib.Path) -> str:
    """The outcome of a command that exited with 0; `added` is what it prints because of the
    damage."""
    if not detail:
        return ledger.EQUAL
    if re.search(_NAMED, added):
        return ledger.NAMED
    return ledger.UNDETECTABLE if unnoticeable(path, intact) else ledger.SILENT


# --- damage


def _damage(case: pathlib.Path, rng: random.Random) -> tuple[pathlib.Path, str]:
    """Damages one file or, occasionally, a whole directory; returns (path, how)."""
    files = sorted(path for path in case.rglob("*") if path.is_file())
    directories = sorted(path for path in case.rglob("*") if path.is_dir())
    if rng.random() < 0.05:
        path = rng.choice(directories)
        shutil.rmtree(path)
        if rng.random() < 0.5:
            return path, "(directory) deleted"
        path.mkdir()
        return path, "(directory) emptied"
    named = sorted(path for path in files if path.suffix in (".json", ".jsonl"))
    path = rng.choice(named if named and rng.random() < 0.5 else files)
    how = rng.choice(tuple(HOWS))
    HOWS[how](path, rng)
    return path, how


def _truncate(path: pathlib.Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def _empty(path: pathlib.Path, rng: random.Random) -> None:
    path.write_bytes(b"")


def _flip_bit(path: pathlib.Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _randomize(path: pathlib.Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(rng.choice((1, 16, 1024))))


def _become_directory(path: pathlib.Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _nest(path: pathlib.Path, rng: random.Random) -> None:
    depth = rng.choice((100, 5_000, 200_000))
    path.write_bytes(b"[" * depth + b"]" * depth)


def _change_digit(path: pathlib.Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    digits = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
    if digits:
        content[rng.choice(digits)] = ord(rng.choice("0123456789"))
    path.write_bytes(content)


def _other_value(path: pathlib.Path, rng: random.Random) -> None:
    """Replaces a JSON value by one of another type; randomizes the file if it is not JSON."""
    value = _json(path.read_bytes())
    if not isinstance(value, dict) or not value:
        return _randomize(path, rng)
    others = (None, [], {}, "x", -1, 1e30, 10**30, True, [[[]]], "\ud800", float("nan"))
    node, name = value, rng.choice(sorted(value))
    while isinstance(node[name], dict) and node[name] and rng.random() < 0.7:
        node = node[name]
        name = rng.choice(sorted(node))
    node[name] = rng.choice(others)
    path.write_text(json.dumps(value))


HOWS: dict[str, Callable[[pathlib.Path, random.Random], None]] = {
    "truncated": _truncate,
    "empty": _empty,
    "deleted": lambda path, rng: path.unlink(),
    "with a bit flipped": _flip_bit,
    "of random bytes": _randomize,
    "a directory": _become_directory,
    "of deep JSON": _nest,
    "with a digit changed": _change_digit,
    "with a value replaced": _other_value,
}


def unnoticeable(path: pathlib.Path, intact: pathlib.Path) -> bool:
    """Whether nothing could have noticed the damage; see the module's docstring."""
    uncovered = (records.CONFIG, records.HPARAMS, records.STUDY, records.RESULT)
    uncovered += (records.EVALUATION,)
    ended = path.name == records.METRICS and (intact.parent / records.RESULT).exists()
    if not path.is_file() or not (path.name in uncovered or ended):
        return False
    now, then = _json(path.read_bytes()), _json(intact.read_bytes())
    return now is not None and _shape(now) == _shape(then)


def _json(content: bytes) -> Any:
    """The value of a JSON file, or the list of values of a JSON Lines file; None for any other."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        try:
            return [json.loads(line) for line in content.splitlines()]
        except (ValueError, RecursionError):
            return None


def _shape(value: Any) -> Any:
    """The keys, lengths, and types of a JSON value."""
    if isinstance(value, dict):
        return {name: _shape(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def _tree(directory: pathlib.Path) -> dict[str, Any]:
    """Contents of all files but the lock, by relative path; None for a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
        if path.name != records.LOCK
    }


def _dying(step: int, act: Callable[[pathlib.Path], int], directory: pathlib.Path) -> int:
    """Calls `act` in a process that kills itself after `step` training steps."""
    original, taken = run.Run.step, []

    def dies(number: int) -> None:
        taken.append(number)
        if len(taken) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def step_then(one, stop=False):
        taken = original(one, stop)
        if taken:
            dies(one.counters.step)
        return taken

    run.Run.step = step_then
    return act(directory)
