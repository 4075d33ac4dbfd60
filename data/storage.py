"""Files of a data set that is given by its path: on a file system, or in a bucket through fsspec.

fsspec's drivers are packages of their own: s3fs for s3://, gcsfs for gs://.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import fsspec

from data.sources import SourceError, fingerprint, reason


def is_url(path: str) -> bool:
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path))


@dataclasses.dataclass(frozen=True)
class Tree:
    """A directory, or a file in it.

    Attributes:
        root: the directory, as a path or URL without a slash at its end.
        names: of all files, relative to `root`, sorted. Files and directories whose names start
            with a dot are left out.
        empty: directories without such files or directories; a bucket has none.
        sizes: bytes of each file in a bucket; not on a file system, where they may take long.
        is_file: whether a file was given, not a directory.
    """

    root: str
    names: list[str]
    empty: Sequence[str] = ()
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    is_file: bool = False

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def fingerprint(self, names: Sequence[str]) -> str:
        """A hash of names and sizes. Reading the content would take as long as an epoch."""
        sizes = self.sizes or {name: os.path.getsize(self.path(name)) for name in names}
        parts = [f"{name}\0{sizes[name]}\0" for name in sorted(names)]
        return fingerprint(*(part.encode(errors="surrogateescape") for part in parts))

    def read(self, names: Sequence[str]) -> list[bytes]:
        """The content of files; those in a bucket are fetched concurrently."""
        if not is_url(self.root):
            return [pathlib.Path(self.root, name).read_bytes() for name in names]
        system, root = fsspec.core.url_to_fs(self.root)
        return system.cat_ranges([f"{root}/{name}" for name in names], None, None, on_error="raise")

    def local(self, name: str, cache_dir: str) -> pathlib.Path:
        """A file on a file system: itself, or its copy in `cache_dir`, which is made once.

        Raises:
            SourceError: there is no `cache_dir` for a copy, or the file cannot be copied.
        """
        if not is_url(self.root):
            return pathlib.Path(self.root, name)
        copy = self.copies(cache_dir) / name
        options = {"cache_storage": str(copy.parent), "same_names": True}
        options |= {"check_files": True, "expiry_time": None}
        try:
            fsspec.open_local(f"filecache::{self.path(name)}", filecache=options)
        except Exception as error:  # drivers raise many types
            raise SourceError(f"{self.path(name)} cannot be copied: {reason(error)}") from error
        return copy

    def copies(self, cache_dir: str) -> pathlib.Path:
        """The directory of the copies of a bucket's files; raises SourceError without a
        `cache_dir`."""
        if not cache_dir:
            raise SourceError(
                f"the files of {self.root} are copied before they are read; give a directory for "
                "the copies as config.dataset.cache_dir"
            )
        hashed = fingerprint(self.root.encode(errors="surrogateescape"))
        name = f"{self.root.rpartition('/')[2]}-{hashed}"
        return pathlib.Path(os.path.expanduser(cache_dir), name)


def tree(path: str) -> Tree:
    """The files below a directory, or one file.

    Raises:
        SourceError: there is none, or it cannot be read.
    """
    path = path.rstrip("/") or path
    found = _remote_tree(path) if is_url(path) else _local_tree(path)
    if not found.names:
        raise SourceError(f"there is no file or directory {path}; correct the path")
    return found


def _local_tree(path: str) -> Tree:
    if os.path.isfile(path):
        return Tree(os.path.dirname(path) or ".", [os.path.basename(path)], is_file=True)
    files, empty = [], []
    for directory, subdirectories, names in os.walk(path, followlinks=True):
        subdirectories[:] = [name for name in subdirectories if name[0] != "."]
        start = os.path.relpath(directory, path).replace(os.sep, "/")
        names = [name for name in names if name[0] != "."]
        files += [name if start == "." else f"{start}/{name}" for name in names]
        if not names and not subdirectories:
            empty.append(start)
    return Tree(path, sorted(files), sorted(empty))


def _remote_tree(url: str) -> Tree:
    try:
        system, root = fsspec.core.url_to_fs(url)
        infos: dict[str, Any] = system.find(root, detail=True)
    except Exception as error:  # drivers raise many types; a missing one says what to install
        raise SourceError(
            f"{url} cannot be listed ({reason(error)}); check the address and the credentials"
        ) from error
    is_file = list(infos) == [root]
    if is_file:
        url, root = url.rpartition("/")[0], root.rpartition("/")[0]
    sizes = {path.removeprefix(root).lstrip("/"): int(i["size"]) for path, i in infos.items()}
    names = [n for n in sorted(sizes) if "/." not in f"/{n}" and not n.endswith("/")]
    return Tree(url, names, sizes=sizes, is_file=is_file)
