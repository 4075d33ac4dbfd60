"""Buckets on this machine, which fsspec reaches through the environment, as a user's would."""

import contextlib
import socket
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def served(scheme: str) -> Iterator[None]:
    """Runs a server for s3 or gs with a bucket named "bucket"; skips if a package is missing."""
    serve = {"s3": _s3, "gs": _gs}[scheme]
    with pytest.MonkeyPatch.context() as patch, serve(patch):
        yield


@contextlib.contextmanager
def _s3(patch):
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    region = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    for name, value in (keys | region).items():
        patch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)
    yield
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


@contextlib.contextmanager
def _gs(patch):
    gcsfs = pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    gcsfs.GCSFileSystem.clear_instance_cache()
    yield
    server.stop()
    gcsfs.GCSFileSystem.clear_instance_cache()
