"""How many small mistakes would the tests notice? Plants them one at a time and counts.

    python -m tests.mutants --count=200
    python -m tests.mutants --count=200 --other=../older-checkout

A mutant is one change of a line of the library: a comparison or sign turned around, a number off by
one, a statement dropped. Mutants are drawn with a fixed seed and planted in a copy of the commit
checked out; the tests of the file's package run until one fails, which kills the mutant. With
--other, mutants are those whose line exists in both checkouts, in a function of the same name, and
both suites are judged. A test that runs for longer than --seconds counts as a failure.
"""

import argparse
import ast
import copy
import pathlib
import random
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOMS = ("echo", "pipeline", "training", "studies", "runs", "analysis", "train.py")
_COMPARISONS = {"Lt": ast.LtE, "LtE": ast.Lt, "Gt": ast.GtE, "GtE": ast.Gt, "Eq": ast.NotEq,
                "NotEq": ast.Eq, "Is": ast.IsNot, "IsNot": ast.Is, "In": ast.NotIn}  # fmt: skip
_SIGNS = {"Add": ast.Sub, "Sub": ast.Add, "Mult": ast.Add, "FloorDiv": ast.Mult}


class Mutant(NamedTuple):
    file: str
    function: str
    before: str  # the statement, unparsed
    after: str


def mutants_of(root: pathlib.Path) -> list[Mutant]:
    """Every mutant of the library below `root`."""
    found = []
    for room in ROOMS:
        place = root / room
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for function in ast.walk(tree):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for statement in function.body[isinstance(function.body[0], ast.Expr) :]:
                        found += _of(statement, str(path.relative_to(root)), function.name)
    return sorted(set(found))


def _of(statement: ast.stmt, file: str, function: str) -> list[Mutant]:
    before = ast.unparse(statement)
    dropped = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    variants = ["pass"] if dropped or isinstance(statement, ast.AugAssign) else []
    for index, node in enumerate(ast.walk(statement)):
        changed = copy.deepcopy(statement)
        twin: ast.AST = list(ast.walk(changed))[index]
        if isinstance(twin, ast.Compare) and type(twin.ops[0]).__name__ in _COMPARISONS:
            twin.ops[0] = _COMPARISONS[type(twin.ops[0]).__name__]()
        elif isinstance(twin, ast.BinOp) and type(twin.op).__name__ in _SIGNS:
            twin.op = _SIGNS[type(twin.op).__name__]()
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.value < 100:
            twin.value = node.value + 1  # type: ignore[attr-defined]
        else:
            continue
        variants.append(ast.unparse(changed))
    return [Mutant(file, function, before, after) for after in variants if after != before]


def plant(mutant: Mutant, root: pathlib.Path) -> str:
    """Writes the mutant into its file below `root`; returns the file's text before."""
    path = root / mutant.file
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    for function in ast.walk(tree):
        if getattr(function, "name", None) == mutant.function and hasattr(function, "body"):
            for index, statement in enumerate(function.body):
                if ast.unparse(statement) == mutant.before:
                    function.body[index] = ast.parse(mutant.after).body[0]
                    path.write_text(ast.unparse(tree), encoding="utf-8")
                    return text
    raise LookupError(f"{mutant.file} has no such statement: {mutant}")


def tests_of(file: str, root: pathlib.Path) -> list[str]:
    """The test files of a file of the library: its namesake first, those that import it, its
    package's."""
    path = pathlib.Path(file)
    module = ".".join(path.with_suffix("").parts)
    imported = (f"import {module}", f"from {module} import", f"from {path.parts[0]} import")
    rank = {}
    for test in sorted((root / "tests").rglob("test_*.py")):
        text = test.read_text(encoding="utf-8")
        near = test.name == f"test_{path.name}"
        imports = any(line in text for line in imported[:2]) or any(
            path.stem in line for line in text.splitlines() if line.startswith(imported[2])
        )
        same = test.parent.name == path.parts[0]
        if near or imports or same:
            rank[str(test.relative_to(root))] = (not near, not imports, not same)
    return sorted(rank, key=lambda name: rank[name])


def survives(mutant: Mutant, root: pathlib.Path, seconds: float) -> bool:
    before = plant(mutant, root)
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--durations=0"]
    marks = ["-m", "not long and not extras"]
    try:
        done = subprocess.run(
            [*words, *marks, *tests_of(mutant.file, root)],
            cwd=root, capture_output=True, timeout=seconds, check=False,
        )  # fmt: skip
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        (root / mutant.file).write_text(before, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--other", type=pathlib.Path, help="another checkout to judge as well")
    arguments = parser.parse_args()
    roots = [pathlib.Path.cwd(), *([arguments.other.resolve()] if arguments.other else [])]
    drawn = [(mutant,) for mutant in mutants_of(roots[0])]
    if arguments.other:
        there = {mutant[1:]: mutant for mutant in mutants_of(roots[1])}
        drawn = [(m, there[m[1:]]) for (m,) in drawn if m[1:] in there]
    random.Random(arguments.seed).shuffle(drawn)
    killed = [0] * len(roots)
    with tempfile.TemporaryDirectory() as scratch:
        copies = [pathlib.Path(scratch) / str(i) for i in range(len(roots))]
        for root, place in zip(roots, copies, strict=True):
            subprocess.run(["git", "clone", "-q", "--shared", root, place], check=True)
        for number, mutants in enumerate(drawn[: arguments.count], 1):
            verdicts = []
            for i, (mutant, place) in enumerate(zip(mutants, copies, strict=True)):
                alive = survives(mutant, place, arguments.seconds)
                killed[i] += not alive
                verdicts.append("survives" if alive else "killed")
            first = mutants[0]
            print(f"{number}: {', '.join(verdicts)}: {first.file}:{first.function}", flush=True)
            print(f"    {first.before!r} -> {first.after!r}", flush=True)
            print(
                f"    killed so far: {', '.join(f'{k / number:.0%}' for k in killed)}", flush=True
            )


if __name__ == "__main__":
    main()
