"""How many small mistakes would the tests notice? Plants them one at a time and counts.

    make mutants
    python -m tests.mutants --count=200 --other=../another-checkout

A mutant is one change of a statement of the library: a comparison or sign turned around, a number
off by one, a statement dropped. It is killed if one of the tests that execute its line fails, or
takes too long. `.coverage` says which tests those are; without it, all tests run once to make it.
Mutants are drawn with a fixed seed. With --other, they are drawn among the statements that both
checkouts have in functions of the same name, and both suites are judged on the same ones.
"""

import argparse
import ast
import collections
import copy
import pathlib
import random
import subprocess
import sys
import tempfile
from typing import NamedTuple

import coverage

PLACES = ("echo", "pipeline", "training", "studies", "runs", "analysis", "train.py")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "--durations=0")
_COMPARISONS = {"Lt": ast.LtE, "LtE": ast.Lt, "Gt": ast.GtE, "GtE": ast.Gt, "Eq": ast.NotEq}
_COMPARISONS |= {"NotEq": ast.Eq, "Is": ast.IsNot, "IsNot": ast.Is, "In": ast.NotIn}
_SIGNS = {"Add": ast.Sub, "Sub": ast.Add, "Mult": ast.Add, "FloorDiv": ast.Mult}
_MOST_TESTS = 40  # of those that execute a line: enough to judge it, and few enough to be quick


class Mutant(NamedTuple):
    """A change of one statement; `before` and `after` are its source, unparsed."""

    function: str
    before: str
    after: str


def simple_statements(function: ast.AST):
    """The statements of a function that contain no other, those of nested functions left out."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node
        yield from simple_statements(node)


def mutants_of(root: pathlib.Path) -> dict[Mutant, tuple[str, int]]:
    """Every mutant of the library below `root`, with its file and line."""
    found = {}
    for place in (root / name for name in PLACES):
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for statement in simple_statements(function):
                        where = str(path.relative_to(root)), statement.lineno
                        for after in changes_of(statement):
                            mutant = Mutant(function.name, ast.unparse(statement), after)
                            found.setdefault(mutant, where)
    return found


def changes_of(statement: ast.stmt) -> list[str]:
    called = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    changes = ["pass"] if called or isinstance(statement, ast.AugAssign) else []
    for index in range(len(list(ast.walk(statement)))):
        changed = copy.deepcopy(statement)
        node = list(ast.walk(changed))[index]
        if isinstance(node, ast.Compare) and type(node.ops[0]).__name__ in _COMPARISONS:
            node.ops[0] = _COMPARISONS[type(node.ops[0]).__name__]()
        elif isinstance(node, ast.BinOp) and type(node.op).__name__ in _SIGNS:
            node.op = _SIGNS[type(node.op).__name__]()
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.value < 100:
            node.value += 1
        else:
            continue
        changes.append(ast.unparse(changed))
    return sorted(set(changes) - {ast.unparse(statement)})


def tests_by_line(root: pathlib.Path) -> dict[tuple[str, int], list[str]]:
    """The tests that execute each line, from the .coverage file below `root`."""
    if not (root / ".coverage").exists():
        print(f"{root}: all tests run once, to find which of them execute which line", flush=True)
        words = ["-m", "not long and not extras", "--cov", "--cov-context=test", "--cov-report="]
        # Not checked: a test that recurses as deep as Python allows fails under coverage.
        subprocess.run([*PYTEST[:-2], *words], cwd=root, check=False)
    data, tests = coverage.CoverageData(str(root / ".coverage")), collections.defaultdict(list)
    data.read()
    for name in data.measured_files():
        if not pathlib.Path(name).is_relative_to(root):  # a file that a test wrote
            continue
        file = str(pathlib.Path(name).relative_to(root))
        for line, contexts in data.contexts_by_lineno(name).items():
            called = {context.rpartition("|")[0] for context in contexts}  # of its phase
            tests[file, line] = sorted(called - {""})
    return tests


def killed(mutant: Mutant, where: tuple[str, int], tests: list[str], root: pathlib.Path) -> bool:
    path = root / where[0]
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    statement = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno == where[1] and not hasattr(node, "body")
    )
    margin = lines[statement.lineno - 1][: statement.col_offset]
    lines[statement.lineno - 1 : statement.end_lineno] = [f"{margin}{mutant.after}\n"]
    chosen = random.Random(0).sample(tests, min(len(tests), _MOST_TESTS))
    try:
        path.write_text("".join(lines), encoding="utf-8")
        done = subprocess.run(
            [*PYTEST, *chosen], cwd=root, capture_output=True, timeout=900, check=False
        )
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--other", type=pathlib.Path, help="another checkout to judge as well")
    arguments = parser.parse_args()
    roots = [pathlib.Path.cwd(), *([arguments.other.resolve()] if arguments.other else [])]
    places = [mutants_of(root) for root in roots]
    drawn = sorted(set.intersection(*(set(mutants) for mutants in places)))
    random.Random(arguments.seed).shuffle(drawn)
    tests, killed_by = [tests_by_line(root) for root in roots], [0] * len(roots)
    with tempfile.TemporaryDirectory() as scratch:
        copies = [pathlib.Path(scratch) / str(number) for number in range(len(roots))]
        for root, place in zip(roots, copies, strict=True):
            subprocess.run(["git", "clone", "-q", "--shared", root, place], check=True)
        for number, mutant in enumerate(drawn[: arguments.count], 1):
            for i, place in enumerate(copies):
                where = places[i][mutant]
                able = tests[i].get(where, [])
                dies = bool(able) and killed(mutant, where, able, place)
                killed_by[i] += dies
                verdict = "killed" if dies else f"survives {len(able)} tests"
                print(f"{number}: {roots[i].name}: {verdict}: {where[0]}:{where[1]}", flush=True)
            print(f"    {mutant.before}  ->  {mutant.after}", flush=True)
            print(f"    killed: {', '.join(f'{k} of {number}' for k in killed_by)}", flush=True)


if __name__ == "__main__":
    main()
