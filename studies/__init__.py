"""Studies: quasi-random searches per condition, run by any number of processes."""
