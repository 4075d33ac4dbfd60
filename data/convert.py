"""Writes a data set that is given by its path as TFDS array_record.

    python -m data.convert folder:flowers DIR/NAME
    python -m data.convert files:corpus DIR/NAME --text=documents
    python -m data.convert 'hf:cifar100?label=fine_label' DIR/NAME

SOURCE is a value of config.dataset.name (docs/your_data.md). All its splits are written to
DIR/NAME, in the same order, so that training on the copy gives the same numbers.
"""

if __name__ == "__main__":  # before slow imports, so that Ctrl-C is handled during them
    from runs import signals

    signals.install(signals.end_at_once)

import io
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from configs.base import is_own_data
from data import paths
from data.file_source import FileSource
from data.path_data import PathData, Settings
from data.sources import RecordError, Source, reason
from runs import cli


def convert(settings: Settings, target: pathlib.Path) -> dict[str, int]:
    """Writes all splits of a data set to `target`; returns their numbers of records.

    Raises:
        InputError: the data cannot be used, or there is a data set of this name already.
        RecordError: a record cannot be read.
    """
    import tensorflow_datasets as tfds

    if (target / "1.0.0").exists():
        raise cli.InputError(f"{target / '1.0.0'} exists; give another name")
    opened = paths.open_all("", settings)
    if strange := [name for name in opened.classes or () if not name.isprintable()]:
        raise cli.InputError(f"TFDS stores no class named {strange[0]!r}; rename it")
    names = [split for split in opened.splits if split not in (paths.KEPT, paths.HELD_OUT)]
    sources = {split: FileSource(split, [opened.open(split)]) for split in names}
    features = _features(opened, sources[opened.main][0])
    about = f"{opened.info.name}, fingerprint {opened.info.fingerprint}"

    class Copy(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """TFDS's own adhoc builder needs TensorFlow."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self, features=features, description=about, disable_shuffling=True
            )

        def _split_generators(self, dl_manager: Any) -> Any:
            return {split: self._generate_examples(source) for split, source in sources.items()}

        def _generate_examples(self, source: Source) -> Any:
            return _examples(source, features)

    Copy.name = target.name
    with tempfile.TemporaryDirectory() as nothing:  # TFDS makes a directory for downloads
        copy = Copy(data_dir=target.parent, file_format="array_record")
        copy.download_and_prepare(download_dir=nothing)
    return {split: len(source) for split, source in sources.items()}


def _features(opened: PathData, record: dict[str, Any]) -> Any:
    """TFDS's description of the records, of which `record` is one."""
    import tensorflow_datasets as tfds

    features, info = tfds.features, opened.info
    names = None if opened.classes is None else list(opened.classes)
    label = features.ClassLabel(names=names, num_classes=None if names else info.num_classes)
    of_object = {
        "bbox": features.Tensor(shape=(4,), dtype=np.float32),  # unlike BBoxFeature, unchecked
        "label": label,
        "area": features.Scalar(np.float32),
        "is_crowd": features.Scalar(np.bool_),
    }
    described = {
        "image": features.Image(shape=info.image_shape or (None, None, info.channels)),
        "label": label,
        "file_name": features.Text(),
        "text": features.Text(),
        "objects": features.Sequence(of_object),
    }
    return features.FeaturesDict({field: described[field] for field in record})


def _examples(source: Source, features: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """The numbered records of a split, checked to fit their description."""
    for number in range(len(source)):
        record = source[number]
        try:
            if isinstance(image := record.get("image"), np.ndarray):
                file = io.BytesIO()
                Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(
                    file, "PNG"
                )
                record = record | {"image": file.getvalue()}
            if "file_name" in record:  # which need not be UTF-8
                record = record | {"file_name": os.fsencode(record["file_name"])}
            features.encode_example(record)
        except Exception as error:  # features raise many types, and quote the record
            raise RecordError(
                f"{source.where(number)} cannot be converted: {reason(error)}; fix or remove it"
            ) from error
        yield number, record


def main(argv: Sequence[str]) -> int:
    parser = cli.Parser(__doc__)
    parser.prog = "python -m data.convert"
    parser.add_argument("source", metavar="SOURCE", help=paths.names_of("PATH"))
    parser.add_argument("target", type=cli.directory, metavar="DIR/NAME", help="what to write")
    kinds = ("sentences", "documents")
    parser.add_argument("--text", choices=kinds, default=kinds[0], help="per line, or per file")
    parser.add_argument("--cache-dir", default="", help="for copies of files in buckets")
    arguments = parser.parse_args(argv)
    target = cli.expanded(arguments.target)
    if not is_own_data(arguments.source):
        raise cli.InputError(f"SOURCE is {arguments.source!r}; allowed: {paths.names_of('PATH')}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", target.name):
        raise cli.InputError(f"NAME is {target.name!r}; allowed: small letters, digits, and _")
    written = convert(Settings(arguments.source, arguments.text, arguments.cache_dir), target)
    shown = ", ".join(f"{split} {number:,}" for split, number in written.items())
    flags = f"--config.dataset.name={target.name} --config.dataset.data_dir={target.parent}"
    print(f"{target}: {shown} records; train on it with {flags}")
    return cli.OK


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
