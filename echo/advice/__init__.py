"""Advice on where and how much to echo: profiles a pipeline, models its timing, and recommends."""
