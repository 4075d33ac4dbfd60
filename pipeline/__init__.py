"""The input pipeline: from a data set on disk to the batches that the training step takes."""
