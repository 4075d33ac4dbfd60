"""A run on disk and on the command line: records, checkpoints, signals, progress, flags."""
