"""How a command that argparse reads refuses wrong input."""

import re

import pytest

from runs import cli


def refusal(main, words, capsys) -> str:
    """The sentence with which `main(words)` ends: one line after the usage, and exit code 2."""
    with pytest.raises(SystemExit) as exit_info:
        main(words)
    assert exit_info.value.code == cli.WRONG_INPUT
    printed = capsys.readouterr()
    assert not printed.out
    found = re.fullmatch(r"usage: .*\n(?: +.*\n)*\S.*: error: (.+)\n", printed.err)
    assert found, printed.err
    return found[1]
