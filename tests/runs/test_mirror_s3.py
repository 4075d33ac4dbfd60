"""--mirror to a bucket: moto's S3 server on this machine."""

import pytest

import train
from runs import tooling
from runs.mirror import Mirror
from tests.helpers.runs import mini

pytestmark = pytest.mark.extras


@pytest.fixture
def bucket(monkeypatch):
    """An empty bucket; fsspec reaches its server through the environment, as a user's would."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    s3fs = pytest.importorskip("s3fs")
    server.start()
    host, port = server.get_host_and_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.makedirs("bucket", exist_ok=True)  # servers in one process share their buckets
    yield files
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


def content(files, place):
    return {path.removeprefix(place): files.cat_file(path) for path in files.find(place)}


def local(directory):
    paths = [path for path in directory.rglob("*") if path.is_file() and path.name != "lock"]
    return {"/" + path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def test_a_run_is_copied_and_its_old_checkpoints_are_removed(bucket, tmp_path):
    workdir, said = tmp_path / "run", []
    tools = tooling.Tools(mirror="s3://bucket/runs/1", root=workdir)
    config = mini(checkpoint_every_fresh_examples=160)
    assert train.train(config, workdir, tools=tools)["status"] == "exhausted"
    assert content(bucket, "bucket/runs/1") == local(workdir)
    before = {
        path: info["LastModified"] for path, info in bucket.find("bucket", detail=True).items()
    }
    Mirror(workdir, "s3://bucket/runs/1", said.append).end({})  # nothing is sent again
    after = {
        path: info["LastModified"] for path, info in bucket.find("bucket", detail=True).items()
    }
    assert after == before
    assert not said


def test_a_bucket_that_does_not_exist_is_a_warning(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("runs.mirror._RETRY_SECONDS", ())
    (tmp_path / "config.json").write_text("{}")
    said = []
    Mirror(tmp_path, "s3://nowhere/runs/1", said.append).end({})
    assert len(said) == 2
    assert "could not be copied to s3://nowhere/runs/1" in said[0]
