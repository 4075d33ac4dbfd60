"""WebDataset: shards from object storage are read once, and their examples repeat."""
# pyright: reportMissingImports=false

import io
import pathlib
import tarfile
import tempfile

import numpy as np
import webdataset

import echo  # echo

shard = pathlib.Path(tempfile.mkdtemp(), "shard-0.tar")  # yours: s3://, gs://, https://
with tarfile.open(shard, "w") as tar:
    for index in range(256):
        np.save(array := io.BytesIO(), np.full(4, index / 256))
        member = tarfile.TarInfo(f"{index}.npy")
        member.size = array.tell()
        tar.addfile(member, io.BytesIO(array.getvalue()))

examples = webdataset.WebDataset(str(shard), shardshuffle=False).decode().to_tuple("npy")
batches = examples.batched(32)
batches = echo.auto(batches)  # echo
steps, total = 0, np.zeros(4)
for (x,) in batches:
    total += x.mean(0)
    steps += 1
print(steps, "steps")
