"""What the tests of the analysis share."""

import pytest

from analysis import report


@pytest.fixture
def coarse_figures(monkeypatch):
    """Reports with small PNG files and no PDF files: a third of the time, the same pages."""
    monkeypatch.setattr(report, "FORMATS", {"png": {"dpi": 20}})
