"""Writes a data set that is given by its path as TFDS array_record, and checks what it wrote.

    python -m data.convert folder:flowers DIR
    python -m data.convert files:corpus DIR --text=documents
    python -m data.convert 'hf:cifar100?label=fine_label' DIR --name=fine

SOURCE is a value of config.dataset.name (docs/your_data.md). All its splits are written to
DIR/NAME, in the same order, so that training on the copy gives the same numbers. Then each record
is read back and compared. An array_record file holds many records, each with a checksum.
"""

if __name__ == "__main__":  # before slow imports, so that Ctrl-C is handled during them
    from runs import signals

    signals.install(signals.end_at_once)

import io
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from data import packaged, paths, splits
from data.path_data import PathData, Settings, canonical_split, main_split
from data.sources import FileSource, RecordError, Source, SourceError, reason
from runs import cli
from runs.progress import write

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SPLIT_NAME = re.compile(r"(?!all$)[\w-]*[^\W_][\w-]*")  # of TFDS, where `all` is every split
_CHUNK = 256
_SMALL = 64  # pixels per side, up to which configs/cifar10.py is proposed


def convert(settings: Settings, directory: pathlib.Path, name: str) -> PathData:
    """Writes all splits of a data set to `directory`/`name`, and checks them.

    Raises:
        InputError: the data cannot be used, there is a data set of this name already, or the
            directory is not writable.
        RecordError: a record cannot be read.
    """
    if not paths.is_path(settings.name):
        paths.check_name(settings.name)
        raise SourceError(f"SOURCE is {settings.name!r}; allowed: {paths.names_of('PATH')}")
    opened = paths.open_all("", settings)
    if wrong := [split for split in opened.splits if not _SPLIT_NAME.fullmatch(split)]:
        raise SourceError(
            f"a split of data set {settings.name!r} is called {wrong[0]!r}; allowed for a copy: "
            "letters, digits, -, and _, with a letter or digit, but not 'all'; rename the split"
        )
    if opened.info.channels not in (None, 1, 3):
        raise SourceError(
            f"the images of data set {settings.name!r} have {opened.info.channels} channels; "
            "allowed: 1 or 3, which is what workloads train on; save gray or color images"
        )
    sources = {
        split: FileSource(split, [(rows(), range(len(rows())))])
        for split, rows in opened.splits.items()
    }
    if empty := [split for split, source in sources.items() if not len(source)]:
        raise SourceError(f"split {empty[0]!r} of data set {settings.name!r} is empty; remove it")
    if (directory / name).exists():
        raise SourceError(f"{directory / name} exists; give another --name or directory")
    with cli.writing_to(directory):
        directory.mkdir(parents=True, exist_ok=True)
    try:
        _write(opened, sources, directory, name)
        for split, source in sources.items():
            _check(source, splits.open_source(name, split, str(directory))[0], split)
    except BaseException:
        shutil.rmtree(directory / name, ignore_errors=True)
        raise
    return opened


def _write(
    opened: PathData, sources: Mapping[str, Source], directory: pathlib.Path, name: str
) -> None:
    import tensorflow_datasets as tfds

    features = _features(opened, sources[main_split(sources)][0])

    class Copy(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """TFDS's own adhoc builder needs TensorFlow."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self,
                features=features,
                description=f"{opened.info.name}, fingerprint {opened.info.fingerprint}",
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager: Any) -> Any:
            return {split: self._generate_examples(source) for split, source in sources.items()}

        def _generate_examples(self, source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
            for number, record in _numbered(source):
                described = {field: record.get(field) for field in features}
                try:
                    _check_complete(described)
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


def _check_complete(described: Mapping[str, Any]) -> None:
    """Raises ValueError for a record without one of its fields."""
    for field, value in described.items():
        if value is None:
            hint = " (-1 marks the records of a split without labels)" if field == "label" else ""
            raise ValueError(f"it has no {field!r}{hint}")


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
        del described["label"]
        of_object: dict[str, Any] = {
            "bbox": features.Tensor(shape=(4,), dtype=np.float32),  # unlike BBoxFeature, unchecked
            "label": features.ClassLabel(**label),
            "area": features.Scalar(np.float32),
            "is_crowd": features.Scalar(np.bool_),
        }
        present = {name: of_object[name] for name in record["objects"]}
        described["objects"] = features.Sequence(present)
    return features.FeaturesDict(
        {field: described[field] for field in record if field in described}
    )


def _numbered(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers and records with encoded images, read in chunks."""
    for start in range(0, len(source), _CHUNK):
        numbers = range(start, min(start + _CHUNK, len(source)))
        for number, record in zip(numbers, source.__getitems__(numbers), strict=True):
            if isinstance(record.get("image"), np.ndarray):
                record = record | {"image": _png(record["image"])}
            yield number, record


def _png(image_HxWxC: np.ndarray) -> bytes:
    file = io.BytesIO()
    gray = image_HxWxC.shape[-1] == 1
    Image.fromarray(image_HxWxC[..., 0] if gray else image_HxWxC).save(file, "PNG")
    return file.getvalue()


def _check(source: Source, copy: Source, split: str) -> None:
    """Raises SourceError unless the copy holds the source's records in their order."""
    from tqdm import tqdm

    pairs = zip(_numbered(source), _numbered(copy), strict=True)
    for (number, record), (_, copied) in tqdm(pairs, f"checking {split}", len(source), unit=""):
        if any(_plain(copied[field]) != _plain(record[field]) for field in copied):
            raise SourceError(
                f"{copy.where(number)} differs from {source.where(number)}; convert again"
            )


def _plain(value: Any) -> Any:
    """A field's value, comparable between TFDS and a source by path."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value
    return np.asarray(value).tobytes()  # NaN included


def next_command(opened: PathData, text: str, directory: pathlib.Path, name: str) -> str:
    """The command that trains on the copy for ten epochs."""
    train = main_split(opened.splits)
    examples = len(opened.splits[train]())
    held_out, test = _held_out(opened, train)
    flags = {
        "name": name,
        "data_dir": directory,
        "train_split": train if held_out else f"{train}[:90%]",
        "validation_split": held_out or f"{train}[90%:]",
        "test_split": test,
    }
    command = [
        *("python", "train.py", f"--config=configs/{_config(opened, text)}.py"),
        *(f"--config.dataset.{field}={value}" for field, value in flags.items()),
        f"--config.budget.fresh_examples={10 * examples}",
        f"--config.evaluate_every_fresh_examples={examples}",
        f"--workdir=out/{name}",
    ]
    return shlex.join(command)


def _held_out(opened: PathData, train: str) -> tuple[str, str]:
    """The splits for validation and testing; '' if there is none."""
    labeled = [split for split in opened.splits if split != train and _is_labeled(opened, split)]
    given = {canonical_split(split): split for split in labeled} | {s: s for s in labeled}
    validation, test, *_ = *(given[s] for s in ("validation", "test") if s in given), "", ""
    return validation, test


def _is_labeled(opened: PathData, split: str) -> bool:
    """Whether the first record has its label, if it is an image of a class."""
    return opened.splits[split]().read([0])[0].get("label") != -1


def _config(opened: PathData, text: str) -> str:
    """The configuration whose workload fits the data."""
    info = opened.info
    if info.num_classes is None:
        return "common_crawl" if text == "documents" else "lm1b"
    if info.has_boxes:
        return "coco"
    small = info.image_shape is not None and max(info.image_shape) <= _SMALL
    return "cifar10" if small else "imagenet"


def main(argv: Sequence[str]) -> int:
    parser = cli.Parser(__doc__)
    parser.prog = "python -m data.convert"
    parser.add_argument("source", metavar="SOURCE", help=paths.names_of("PATH"))
    parser.add_argument(
        "directory",
        type=cli.directory,
        metavar="DIR",
        help="directory of TFDS data; created if missing",
    )
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
    name = arguments.name or _default_name(settings)
    if not _NAME.fullmatch(name):
        raise cli.InputError(
            f"--name is {name!r}; allowed: small letters, digits, and _, a letter first"
        )
    if _is_taken(name):
        raise cli.InputError(
            f"--name is {name!r}, which is data of a package or a data set that TFDS knows; give "
            "another --name"
        )
    directory = cli.expanded(arguments.directory)
    try:
        opened = convert(settings, directory, name)
    except RecordError as error:
        raise cli.InputError(str(error)) from error
    records = ", ".join(f"{split} {len(rows()):,}" for split, rows in opened.splits.items())
    command = next_command(opened, arguments.text, directory, name)
    write(
        f"{directory / name}: wrote {records} records, and compared their bytes; next:\n\n{command}"
    )
    return cli.OK


def _default_name(settings: Settings) -> str:
    stem = pathlib.PurePath(settings.path).stem.lower()
    name = re.sub(r"[^a-z0-9]+", "_", stem).strip("_") or "data"
    return f"{name}_copy" if _is_taken(name) else name


def _is_taken(name: str) -> bool:
    """Whether a name opens other data, whatever is in DIR: TFDS looks for a data set that it knows
    by the version and the features in its code."""
    import tensorflow_datasets as tfds

    known = (*packaged.NAMES, *tfds.list_builders(with_community_datasets=False))
    return name in known


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
