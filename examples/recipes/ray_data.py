"""Ray Data: batches of NumPy arrays or of tensors (`iter_torch_batches`) repeat."""
# pyright: reportMissingImports=false

import time

import ray

import echo  # echo


def decode(row):  # yours
    time.sleep(0.001)
    return {"x": row["id"] / 256, "y": row["id"] / 128}


ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
dataset = ray.data.range(256).map(decode)
batches = dataset.iter_batches(batch_size=32)
batches = echo.auto(batches)  # echo
weight, steps = 0.0, 0
for batch in batches:
    weight -= 0.1 * (2 * (weight * batch["x"] - batch["y"]) * batch["x"]).mean()
    steps += 1
print(steps, "steps")
ray.shutdown()
