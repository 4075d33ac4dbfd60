"""Input: from a data set on disk to the batches that the step takes."""
