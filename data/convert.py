"""Writes a data set that is given by its path as TFDS array_record.

    python -m data.convert folder:flowers DIR
    python -m data.convert files:corpus DIR --text=documents
    python -m data.convert 'hf:cifar100?label=fine_label' DIR --name=fine

SOURCE is a value of config.dataset.name (docs/your_data.md). All its splits are written to
DIR/NAME, in the same order, so that training on the copy gives the same numbers. An array_record
file holds many records, each with a checksum.
"""

if __name__ == "__main__":  # before slow imports, so that Ctrl-C is handled during them
    from runs import signals

    signals.install(signals.end_at_once)

import io
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
from data.path_data import PathData, Settings, main_split
from data.sources import FileSource, RecordError, Source, SourceError, reason
from runs import cli

_CHUNK = 256


def convert(settings: Settings, directory: pathlib.Path, name: str) -> dict[str, int]:
    """Writes all splits of a data set to `directory`/`name`; returns their numbers of records.

    Raises:
        InputError: the data cannot be used, or there is a data set of this name already.
        RecordError: a record cannot be read.
    """
    import tensorflow_datasets as tfds

    if (directory / name / "1.0.0").exists():
        raise SourceError(f"{directory / name / '1.0.0'} exists; give another --name or directory")
    opened = paths.open_all("", settings)
    sources = {
        split: FileSource(split, [(rows(), range(len(rows())))])
        for split, rows in opened.splits.items()
        if split not in (paths.KEPT, paths.HELD_OUT)
    }
    features = _features(opened, sources[main_split(sources)][0])

    class Copy(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """TFDS's own adhoc builder needs TensorFlow."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            about = f"{opened.info.name}, fingerprint {opened.info.fingerprint}"
            return tfds.core.DatasetInfo(
                builder=self, features=features, description=about, disable_shuffling=True
            )

        def _split_generators(self, dl_manager: Any) -> Any:
            return {split: self._generate_examples(source) for split, source in sources.items()}

        def _generate_examples(self, source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
            for number, record in _numbered(source):
                try:
                    described = {field: record[field] for field in features}
                    if isinstance(described.get("image"), np.ndarray):
                        described["image"] = _png(described["image"])
                    features.encode_example(described)
                except Exception as error:  # features raise many types, and quote the record
                    raise RecordError(
                        f"{source.where(number)} cannot be converted: {reason(error)}; fix it, or "
                        "remove it"
                    ) from error
                yield number, described

    Copy.name = name
    with tempfile.TemporaryDirectory() as nothing:  # TFDS makes a directory for downloads
        copy = Copy(data_dir=directory, file_format="array_record")
        copy.download_and_prepare(download_dir=nothing)
    return {split: len(source) for split, source in sources.items()}


def _features(opened: PathData, record: dict[str, Any]) -> Any:
    """TFDS's description of the records, of which `record` is one."""
    import tensorflow_datasets as tfds

    features, info = tfds.features, opened.info
    label = {"names": list(opened.classes)} if opened.classes else {"num_classes": info.num_classes}
    described: dict[str, Any] = {
        "image": features.Image(shape=info.image_shape or (None, None, info.channels)),
        "label": features.ClassLabel(**label),
        "file_name": features.Text(),
        "text": features.Text(),
    }
    if info.has_boxes:
        of_object: dict[str, Any] = {
            "bbox": features.Tensor(shape=(4,), dtype=np.float32),  # unlike BBoxFeature, unchecked
            "label": features.ClassLabel(**label),
            "area": features.Scalar(np.float32),
            "is_crowd": features.Scalar(np.bool_),
        }
        present = {name: of_object[name] for name in record["objects"]}
        described["objects"] = features.Sequence(present)
    return features.FeaturesDict({field: described[field] for field in record})


def _numbered(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers and records, read in chunks."""
    for start in range(0, len(source), _CHUNK):
        numbers = range(start, min(start + _CHUNK, len(source)))
        yield from zip(numbers, source.__getitems__(numbers), strict=True)


def _png(image_HxWxC: np.ndarray) -> bytes:
    file = io.BytesIO()
    gray = image_HxWxC.shape[-1] == 1
    Image.fromarray(image_HxWxC[..., 0] if gray else image_HxWxC).save(file, "PNG")
    return file.getvalue()


def main(argv: Sequence[str]) -> int:
    parser = cli.Parser(__doc__)
    parser.prog = "python -m data.convert"
    parser.add_argument("source", metavar="SOURCE", help=paths.names_of("PATH"))
    parser.add_argument("directory", type=cli.directory, metavar="DIR", help="of TFDS data")
    parser.add_argument("--name", help="name of the copy (default: from the path)")
    parser.add_argument(
        "--text",
        choices=("sentences", "documents"),
        default="sentences",
        help="files: a record per line, or per file (default sentences)",
    )
    parser.add_argument(
        "--cache-dir", default="", help="directory for copies of files from s3:// or gs://"
    )
    arguments = parser.parse_args(argv)
    settings = Settings(arguments.source, arguments.text, arguments.cache_dir)
    if not is_own_data(settings.name):
        raise SourceError(f"SOURCE is {settings.name!r}; allowed: {paths.names_of('PATH')}")
    stem = pathlib.PurePath(settings.path).stem.lower()
    name = arguments.name or f"{re.sub(r'[^a-z0-9]+', '_', stem).strip('_')}_copy"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise cli.InputError(
            f"--name is {name!r}; allowed: small letters, digits, and _, a letter first"
        )
    directory = cli.expanded(arguments.directory)
    try:
        written = convert(settings, directory, name)
    except RecordError as error:
        raise cli.InputError(str(error)) from error
    shown = ", ".join(f"{split} {number:,}" for split, number in written.items())
    print(
        f"{directory / name}: {shown} records; train on it with --config.dataset.name={name} "
        f"--config.dataset.data_dir={directory}"
    )
    return cli.OK


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
