"""Files of a data set that is given by its path: on a file system, or in a bucket through fsspec.

fsspec's drivers are packages of their own: s3fs for s3://, gcsfs for gs://.
"""

import dataclasses
import difflib
import functools
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, BinaryIO

import fsspec

from data import cache
from data.sources import SourceError, fingerprint, reason
from runs import cli, records

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_DRIVERS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}


def is_url(path: str) -> bool:
    return bool(_URL.match(path))


@dataclasses.dataclass(frozen=True)
class Tree:
    """A directory, or a file in it.

    Attributes:
        root: the directory, as a path or URL without a slash at its end.
        names: of all files, relative to `root`, sorted. Files and directories whose names start
            with a dot are left out.
        empty: directories without such files or directories; a bucket has none.
        sizes: bytes of each file in a bucket. On a file system they are not needed to list files,
            and take long for a million files on a network.
        stamp: identifies this state of files in a bucket.
    """

    root: str
    names: list[str]
    empty: Sequence[str] = ()
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    stamp: str = ""

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def only(self, names: Sequence[str]) -> "Tree":
        """The tree without other files."""
        return dataclasses.replace(self, names=list(names))

    def fingerprint(self) -> str:
        """A hash of names and sizes. Reading the content would take as long as an epoch."""
        parts = (f"{name}\0{self._size(name)}\0" for name in self.names)
        return fingerprint(*(part.encode(errors="surrogateescape") for part in parts))

    def _size(self, name: str) -> int:
        return self.sizes[name] if self.sizes else os.path.getsize(self.path(name))

    def read(self, names: Sequence[str]) -> list[bytes]:
        """The content of files; those in a bucket are fetched concurrently."""
        if not is_url(self.root):
            return [records.file_content(self.path(name)) for name in names]
        system, root = _system(self.root)
        paths = [f"{root}/{name}" for name in names]
        contents = system.cat_ranges(paths, None, None, on_error="return")
        for content in contents:
            if isinstance(content, Exception):
                raise content
        return contents

    def open(self, name: str) -> BinaryIO:
        """A file, of which parts can be read without a copy.

        Raises:
            SourceError: it is a named pipe or a device.
        """
        if not is_url(self.root):
            return self.local(name, "").open("rb")
        system, root = _system(self.root)
        return system.open(f"{root}/{name}")

    def local(self, name: str, cache_dir: str) -> pathlib.Path:
        """A file on a file system: itself, or its copy in `cache_dir`, which is made once.

        Raises:
            SourceError: it is a named pipe or a device, there is no `cache_dir` for a copy, or the
                file cannot be copied.
        """
        if not is_url(self.root):
            path = pathlib.Path(self.root, name)
            if path.exists() and not path.is_file():
                raise SourceError(f"{path} is not a file; move it away")
            return path
        copy = self.cache(cache_dir) / name
        if not copy.exists():
            cache.make_file(copy, functools.partial(self._fetch, name))
        return copy

    def cache(self, cache_dir: str) -> pathlib.Path:
        """The directory of files that are made once from this tree.

        Raises:
            SourceError: the tree is in a bucket, and there is no `cache_dir`.
            InputError: `cache_dir` is in the home directory of a user who does not exist.
        """
        if cache_dir:
            hashed = fingerprint(self.root.encode(errors="surrogateescape"))
            name = f"{self.root.rpartition('/')[2]}-{hashed}{self.stamp}"
            return cli.expanded(cache_dir) / name
        if is_url(self.root):
            raise SourceError(
                f"the files of {self.root} are copied before they are read; give a directory for "
                "the copies as config.dataset.cache_dir"
            )
        return pathlib.Path(self.root, ".cache")

    def _fetch(self, name: str, copy: pathlib.Path) -> None:
        from fsspec.callbacks import TqdmCallback

        system, root = _system(self.root)
        bar = {"desc": f"copying {name}", "unit": "B", "unit_scale": True, "delay": 1}
        with TqdmCallback(tqdm_kwargs=bar) as progress:
            system.get_file(f"{root}/{name}", os.fspath(copy), callback=progress)
        if copy.stat().st_size != self.sizes[name]:
            raise OSError(f"{copy.stat().st_size} of {self.sizes[name]} bytes arrived")


def tree(path: str) -> Tree:
    """The files below a directory, or one file.

    Raises:
        SourceError: there is none, or it cannot be read.
    """
    path = path.rstrip("/") or path
    return _remote_tree(path) if is_url(path) else _local_tree(path)


def _local_tree(path: str) -> Tree:
    if os.path.isfile(path):
        return Tree(os.path.dirname(path) or ".", [os.path.basename(path)])
    if not os.path.isdir(path):
        raise SourceError(f"there is no file or directory {path}{_similar(path)}; correct the path")
    files, empty = [], []
    try:
        for directory, subdirectories, names in os.walk(path, onerror=_raise, followlinks=True):
            subdirectories[:] = [name for name in subdirectories if name[0] != "."]
            for name in subdirectories:
                _check_link(os.path.join(directory, name))
            start = os.path.relpath(directory, path).replace(os.sep, "/")
            names = [name for name in names if name[0] != "."]
            files += [name if start == "." else f"{start}/{name}" for name in names]
            if not names and not subdirectories:
                empty.append(start)
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({reason(error)}); correct the path") from error
    return Tree(path, sorted(files), sorted(empty))


def _check_link(directory: str) -> None:
    """Raises SourceError for a link to a directory that it lies in: the files there would be listed
    as often as the system follows the link."""
    if not os.path.islink(directory):
        return
    target, place = os.path.realpath(directory), os.path.realpath(os.path.dirname(directory))
    if os.path.commonpath([target, place]) == target:
        raise SourceError(
            f"{directory} is a link to {target}, in which it lies, so that its files would be "
            "repeated without end; remove the link"
        )


def _remote_tree(url: str) -> Tree:
    system, root = _system(url)
    try:
        infos: dict[str, Any] = system.find(root, detail=True)
    except Exception as error:  # drivers raise many types
        raise _not_listed(url, error) from error
    if not infos:
        raise SourceError(f"there is no file or directory {url}; correct the address")
    if list(infos) == [root]:
        url, root = url.rpartition("/")[0], root.rpartition("/")[0]
    versions = [
        info.get("ETag") or info.get("etag") or str(info.get("mtime")) for info in infos.values()
    ]
    names = {path.removeprefix(root).lstrip("/"): info for path, info in infos.items()}
    sizes = {
        name: int(info["size"])
        for name, info in sorted(names.items())
        if not any(part.startswith(".") for part in name.split("/")) and not name.endswith("/")
    }
    stamp = fingerprint(*(version.encode() for version in versions))
    return Tree(url, list(sizes), sizes=sizes, stamp=stamp)


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path on it."""
    try:
        return fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        kind = url.partition("://")[0]
        if kind in _DRIVERS:
            raise SourceError(
                f"{url} needs a package that is not installed; pip install {_DRIVERS[kind]}"
            ) from error
        raise SourceError(f"{url} is not supported; allowed: a path, s3://, or gs://") from error
    except Exception as error:  # some drivers connect at once, and raise many types
        raise _not_listed(url, error) from error


def _not_listed(url: str, error: Exception) -> SourceError:
    return SourceError(
        f"{url} cannot be listed ({reason(error)}); check the address and the credentials"
    )


def _raise(error: OSError) -> None:
    raise error


def _similar(path: str) -> str:
    """' (did you mean ...?)' if the parent directory has a similar name."""
    parent, name = os.path.split(path)
    try:
        close = difflib.get_close_matches(name, os.listdir(parent or "."), n=1)
    except OSError:
        close = []
    return f" (did you mean {os.path.join(parent, close[0])}?)" if close else ""
