"""A run on disk and on the command line; imports nothing of the rest of the project."""
