"""Studies: what is run, in which order, by which processes, and that none of it is run twice."""
