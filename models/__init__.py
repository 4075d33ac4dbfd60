"""Neural networks; nothing here depends on a configuration, a workload, or a data set."""
