"""Data in a bucket on this machine: moto's S3 server, and an emulator of Google's storage."""

import numpy as np
import pytest

import train
from data import paths, splits, storage
from data.sources import RecordError, SourceError
from tests.helpers import buckets, path_data, tfds_data
from tests.helpers.runs import mini, records_of


@pytest.fixture(scope="module", params=["s3", "gs"])
def scheme(request):
    with buckets.served(request.param):
        yield request.param


@pytest.fixture
def upload(scheme):
    """A function that uploads a directory and returns its URL."""

    def upload(directory, to):
        files = storage.fsspec.filesystem(scheme)
        for path in sorted(p for p in directory.rglob("*") if p.is_file()):
            name = path.relative_to(directory).as_posix()
            files.pipe_file(f"bucket/{to}/{name}", path.read_bytes())
        paths.opened.cache_clear()
        files.invalidate_cache()
        return f"{scheme}://bucket/{to}"

    return upload


def everything(source):
    return source.__getitems__(range(len(source)))


@pytest.mark.extras
def test_images_in_a_bucket_give_the_same_run(upload, tmp_path):
    here = path_data.write_folder(tmp_path / "own", {"train": range(70), "val": range(70, 90)})
    (here / "train" / "cat" / "odd [1] ?.png").write_bytes(tfds_data.png(3))
    url = upload(here, "images")
    local, info = splits.open_source(f"folder:{here}", "train")
    remote, same = splits.open_source(f"folder:{url}", "train")
    assert everything(remote) == everything(local)
    assert same.fingerprint == info.fingerprint
    assert remote.bytes_read(len(remote)) == local.bytes_read(len(local)) > 0
    fields = {"batch_size": 16, "budget__fresh_examples": 64, "dataset__test_split": ""}
    train.train(mini(dataset__name=f"folder:{here}", **fields), tmp_path / "local")
    train.train(
        mini(
            dataset__name="folder:images", dataset__data_dir=url.removesuffix("/images"), **fields
        ),
        tmp_path / "remote",
    )
    assert records_of(tmp_path / "local") == records_of(tmp_path / "remote")


@pytest.mark.extras
def test_an_image_that_disappears_from_a_bucket_is_named(upload, tmp_path):
    here = path_data.write_folder(tmp_path / "own", {"": range(70)})
    url = upload(here, "vanishing")
    source, _ = splits.open_source(f"folder:{url}", "train")
    name = source[66]["file_name"]
    storage.fsspec.filesystem(url.partition(":")[0]).rm(f"bucket/vanishing/{name}")
    with pytest.raises(RecordError, match=rf"^record 66 of .*\({url}/{name}\) cannot be read"):
        source.__getitems__([65, 66, 67])


@pytest.mark.extras
@pytest.mark.parametrize("kind", ["npz", "files", "hf"])
def test_files_in_a_bucket_are_copied_once(kind, upload, tmp_path, monkeypatch):
    own, cache = tmp_path / "own[1]", str(tmp_path / "cache")
    table = path_data.images_table(range(20))
    if kind == "npz":
        arrays = {"image": path_data.pixels(range(20)), "label": np.arange(20) % 3}
        path_data.write_npz(own / "a.npz", **arrays)
    elif kind == "files":
        own.mkdir()
        (own / "a.txt").write_text("\n".join(path_data.sentences(range(20))))
    else:
        path_data.write_parquet(own / "a.parquet", table)
    file = "/a.npz" if kind == "npz" else ""
    url = upload(own, f"copied[1]/{kind}")
    with pytest.raises(SourceError, match=r"config\.dataset\.cache"):
        splits.open_source(f"{kind}:{url}{file}", "train")
    remote, info = splits.open_source(f"{kind}:{url}{file}", "train", cache_dir=cache)
    local, same = splits.open_source(f"{kind}:{own}{file}", "train")
    assert str(everything(remote)) == str(everything(local))
    assert info.fingerprint == same.fingerprint
    assert remote.where(3).split("(")[1].startswith(url)
    paths.opened.cache_clear()
    monkeypatch.setattr(type(storage.fsspec.filesystem(url.partition(":")[0])), "_get_file", None)
    again, _ = splits.open_source(f"{kind}:{url}{file}", "train", cache_dir=cache)
    assert str(everything(again)) == str(everything(remote))


@pytest.mark.extras
def test_a_file_that_has_changed_in_a_bucket_is_copied_again(upload, tmp_path):
    (tmp_path / "own").mkdir()
    for text in ("first", "other"):
        (tmp_path / "own" / "a.txt").write_text(text)
        url = upload(tmp_path / "own", "changing")
        source, _ = splits.open_source(f"files:{url}", "train", cache_dir=str(tmp_path / "cache"))
        assert source[0]["text"] == text.encode()


@pytest.mark.extras
def test_the_files_of_a_tfds_split_are_copied(upload, tmp_path):
    features = {"image": tfds_data.image(8, 8, 1), "label": tfds_data.label()}
    numbers = {"train": tfds_data.pictures(range(40)), "test": tfds_data.pictures(range(40, 50))}
    tfds_data.write(tmp_path / "own", "pictures", features, numbers, shards=2)
    url, cache = upload(tmp_path / "own", "tfds"), tmp_path / "cache"
    local, info = splits.open_source("pictures", "train[:50%]", str(tmp_path / "own"))
    remote, same = splits.open_source("pictures", "train[:50%]", url, cache_dir=str(cache))
    assert everything(remote) == everything(local)
    assert same == info
    copied = {path.name for path in cache.rglob("*") if path.is_file() and path.name != "cache"}
    assert copied == {
        "dataset_info.json",
        "features.json",
        "pictures-train.array_record-00000-of-00002",
    }
    with pytest.raises(SourceError, match=r"config\.dataset\.cache"):
        splits.open_source("pictures", "test", url)


@pytest.mark.extras
@pytest.mark.parametrize("place", ["no-such-bucket/x", "bucket/no-such-directory"])
def test_what_is_not_in_a_bucket_is_one_sentence(place, scheme):
    url = f"{scheme}://{place}"
    with pytest.raises(SourceError, match=url) as caught:
        splits.open_source(f"folder:{url}", "train")
    assert "\n" not in str(caught.value)
