"""--mirror to a bucket on this machine."""

import fsspec
import pytest

import train
from runs import tooling
from runs.mirror import Mirror
from tests.helpers import buckets
from tests.helpers.runs import mini

pytestmark = pytest.mark.extras


@pytest.fixture(params=["s3", "gs"])
def bucket(request):
    """The URL of an empty bucket, and its file system."""
    with buckets.served(request.param):
        files = fsspec.filesystem(request.param)
        if left := files.find("bucket"):  # servers in one process share their buckets
            files.rm(left)
        yield f"{request.param}://bucket", files


def content(files, place):
    files.invalidate_cache()
    return {path.removeprefix(place): files.cat_file(path) for path in files.find(place)}


def local(directory):
    paths = [path for path in directory.rglob("*") if path.is_file() and path.name != "lock"]
    return {"/" + path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def test_a_run_is_copied_and_its_old_checkpoints_are_removed(bucket, tmp_path):
    (url, files), workdir, said = bucket, tmp_path / "run", []
    tools = tooling.Tools(mirror=f"{url}/runs/1", root=workdir)
    config = mini(checkpoint_every_fresh_examples=160)
    assert train.train(config, workdir, tools=tools)["status"] == "exhausted"
    assert content(files, "bucket/runs/1") == local(workdir)
    before = files.find("bucket", detail=True)
    Mirror(workdir, f"{url}/runs/1", said.append).end({})  # nothing is sent again
    files.invalidate_cache()
    assert files.find("bucket", detail=True) == before
    assert not said


def test_a_bucket_that_does_not_exist_is_a_warning(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("runs.mirror._RETRY_SECONDS", ())
    (tmp_path / "config.json").write_text("{}")
    said, elsewhere = [], bucket[0].replace("bucket", "nowhere")
    Mirror(tmp_path, f"{elsewhere}/runs/1", said.append).end({})
    assert len(said) == 2
    assert f"could not be copied to {elsewhere}/runs/1" in said[0]
