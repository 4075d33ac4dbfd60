"""What the tests of the analysis share."""

import pytest

from analysis import report
from tests.helpers.written_studies import BASELINE, BEFORE, SMALL, write_study


@pytest.fixture
def coarse_figures(monkeypatch):
    """Reports with small PNG files and no PDF files: a third of the time, the same pages."""
    monkeypatch.setattr(report, "FORMATS", {"png": {"dpi": 20}})


@pytest.fixture
def small(tmp_path):
    return write_study(tmp_path / "small", [BASELINE, BEFORE], SMALL)
