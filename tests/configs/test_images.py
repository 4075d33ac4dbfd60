"""What configs/images.py guesses from a folder of images."""

import numpy as np
import pytest
from PIL import Image

from runs import cli
from training.experiment import make_experiment


@pytest.mark.parametrize(
    ("sides", "workload", "depth"), [((8,), "cifar10", 8), ((80, 90), "imagenet", 18)]
)
def test_a_folder_of_images_needs_no_other_setting(sides, workload, depth, tmp_path):
    for number in range(40):
        path = tmp_path / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        side = sides[number % len(sides)]
        Image.fromarray(np.full((side, side, 3), number, np.uint8)).save(path)
    (tmp_path / "class0" / "notes.pdf").touch()  # which Pillow knows, too
    first = tmp_path / "class0" / "0.png"
    content = first.read_bytes()
    first.write_bytes(b"damaged")  # training says so
    config, _ = cli.load_config(f"configs/images.py:{tmp_path}")
    first.write_bytes(content)
    assert (config.workload, config.model.depth) == (workload, depth)
    assert config.budget.fresh_examples == 20 * 40
    experiment = make_experiment(config)
    assert len(experiment.source) < 40  # some are held out
    with pytest.raises(cli.InputError, match="images"):
        cli.load_config(f"configs/images.py:{tmp_path / 'none'}")
