"""What to run: one file per workload, numbers and choices only."""
