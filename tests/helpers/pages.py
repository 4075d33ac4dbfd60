"""Code blocks of Markdown pages: read, applied if they are diffs, and run if they are commands."""

import importlib
import pathlib
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from runs import cli
from tests.helpers.runs import ROOT

COMMANDS = {
    "train.py": "train",
    "sweep.py": "sweep",
    "advise.py": "advise",
    "analysis": "analysis.__main__",
}


class Block(NamedTuple):
    """A fenced block of a page; `note` is the HTML comment on the lines before it, or ''."""

    page: str
    line: int
    note: str
    language: str
    code: str


_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n\n?)?^ *```(?P<language>\w*)\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page (a path within the repository), in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, m.start()) + 1, m["note"] or "", m["language"], m["code"])
        for m in _BLOCK.finditer(text)
    ]


def apply(diff: str, directory: pathlib.Path) -> None:
    """Applies a unified diff whose hunks have no line numbers; each must fit in one place."""
    for name, body in re.findall(r"^\+\+\+ b/(\S+)\n(.*?)(?=^--- |\Z)", diff, re.S | re.M):
        path = directory / name
        for hunk in re.split(r"^@@\n", body, flags=re.M):
            lines = hunk.splitlines()
            old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
            new = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
            if old:
                text = path.read_text(encoding="utf-8")
                assert text.count(old) == 1, f"{name} has this {text.count(old)} times:\n{old}"
                path.write_text(text.replace(old, new), encoding="utf-8")
            elif new:
                assert not path.exists()
                path.write_text(new, encoding="utf-8")


def commands(code: str) -> list[list[str]]:
    """The words of each command in a block; `\\` continues a line, `#` starts a comment."""
    lines = code.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [found for found in words if found]


def run(words: Sequence[str]) -> int:
    """Runs `python train.py ...`, its siblings, or `python [-P] -c CODE` in this process; returns
    the exit code."""
    assert words[0] == "python", words
    words = [word for word in words if word != "-P"]  # which concerns the way to a package
    if words[1] == "-c":
        exec(words[2], {})
        return cli.OK
    script, *arguments = words[2:] if words[1] == "-m" else words[1:]
    return cli.guarded(importlib.import_module(COMMANDS[script]).main, arguments)
