"""S3 on this machine: a process with moto, for what a real server does."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

BUCKET = "bucket"

_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def environment(port: int) -> Mapping[str, str]:
    """The environment of a client of the server at ``port``; nothing leads to another machine."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE12345",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
        "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",
    }


@contextmanager
def moto_process() -> Iterator[int]:
    """A server with an empty bucket, :data:`BUCKET`; its port."""
    command = [sys.executable, "-W", "ignore", "-c", _MOTO]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            port = int(process.stdout.readline())
            url = f"http://127.0.0.1:{port}/{BUCKET}"
            signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"}
            urllib.request.urlopen(urllib.request.Request(url, b"", signed, method="PUT")).close()
            yield port
        finally:
            process.stdin.close()
