"""Passes over S3 with a latency of 20 ms against pyarrow's scanner: ``python -m benchmarks.s3_latency``.

The server is a small one in a process of its own, on loopback. It answers HEAD, GET of ranges and listings, each after
20 ms. Rounds alternate, and the best of each contender counts.
"""

import argparse
import asyncio
import contextlib
import hashlib
import io
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from urllib.parse import parse_qs, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import dataset as arrow_dataset
from pyarrow import fs

import midepoch as me

LATENCY = 0.02
BUCKET, FILES, ROWS, WIDTH, GROUP = "bucket", 24, 10_000, 500, 1_000
KEYS = {"key": "k", "secret": "s", "region": "us-east-1"}
ENTRY = (
    '<Contents><Key>{}</Key><Size>{}</Size><ETag>"{}"</ETag>'
    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
)


def objects(files: int) -> dict[str, bytes]:
    """Parquet files of ten row groups of 500 kB."""
    offsets = pa.py_buffer((np.arange(ROWS + 1) * WIDTH).astype(np.int32))
    made = {}
    for number in range(files):
        content = pa.py_buffer(np.random.default_rng(number).bytes(ROWS * WIDTH))
        text = pa.Array.from_buffers(pa.binary(), ROWS, [None, offsets, content])
        table = pa.table({"id": np.arange(ROWS) + number * ROWS, "text": text})
        sink = io.BytesIO()
        pq.write_table(table, sink, row_group_size=GROUP, compression="none", use_dictionary=False)
        made[f"d/{number:02}.parquet"] = sink.getvalue()
    return made


def serve(files: int, pipe: Connection) -> None:
    """Serve objects until the process is ended; send the port through the pipe."""
    stored = objects(files)
    etags = {key: hashlib.md5(content).hexdigest() for key, content in stored.items()}

    def answer(method: str, target: str, headers: dict[str, str]) -> tuple[str, list[str], bytes]:
        path, _, query = target.partition("?")
        key = unquote(path).removeprefix(f"/{BUCKET}").lstrip("/")
        if not key:
            prefix = parse_qs(query).get("prefix", [""])[0]
            found = [
                ENTRY.format(name, len(stored[name]), etags[name]) for name in sorted(stored) if name.startswith(prefix)
            ]
            page = f"<ListBucketResult><KeyCount>{len(found)}</KeyCount>{''.join(found)}</ListBucketResult>"
            return "200 OK", ["Content-Type: application/xml"], page.encode()
        if key not in stored:
            return "404 Not Found", [], b""
        content = stored[key]
        said = [f'ETag: "{etags[key]}"', "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT", "Accept-Ranges: bytes"]
        if method == "HEAD" or "range" not in headers:
            return "200 OK", said, content
        begin, _, end = headers["range"].removeprefix("bytes=").partition("-")
        last = min(int(end or len(content)), len(content) - 1)
        said.append(f"Content-Range: bytes {begin}-{last}/{len(content)}")
        return "206 Partial Content", said, content[int(begin) : last + 1]

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = first.split(" ")
                pairs = (line.partition(": ") for line in lines if line)
                status, said, body = answer(method, target, {name.lower(): value for name, _, value in pairs})
                await asyncio.sleep(LATENCY)
                writer.write(
                    "\r\n".join([f"HTTP/1.1 {status}", *said, f"Content-Length: {len(body)}", "", ""]).encode()
                )
                if method != "HEAD":
                    writer.write(body)
                await writer.drain()

    async def run() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 20)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextlib.contextmanager
def serving(files: int) -> Iterator[str]:
    """The endpoint of a server that runs until the block ends."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(files, there), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join()


def scanned(endpoint: str, columns: list[str] | None) -> int:
    store = fs.S3FileSystem(
        access_key="k", secret_key="s", region="us-east-1", endpoint_override=endpoint, scheme="http"
    )
    table = arrow_dataset.dataset(f"{BUCKET}/d", filesystem=store, format="parquet")
    return sum(batch.num_rows for batch in table.to_batches(columns=columns, batch_size=1024))


def read(endpoint: str, columns: list[str] | None) -> int:
    dataset = me.read(f"s3://{BUCKET}/d", storage_options={**KEYS, "endpoint": endpoint}, columns=columns)
    return sum(batch.num_rows for batch in dataset.with_format("arrow").batch(1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=FILES)
    options = parser.parse_args()
    contenders: dict[str, Callable[[str, list[str] | None], int]] = {
        "pyarrow's scanner": scanned,
        "midepoch": read,
    }
    with serving(options.files) as endpoint, tempfile.TemporaryDirectory() as index:
        os.environ["MIDEPOCH_INDEX_DIR"] = index
        print("| columns | contender | seconds | of the scanner's speed | processor seconds |")
        print("| --- | --- | ---: | ---: | ---: |")
        for name, columns in (("all", None), ("one", ["id"])):
            wall = {contender: list[float]() for contender in contenders}
            used = {contender: list[float]() for contender in contenders}
            for _ in range(options.rounds + 1):  # the first warms connections and indexes
                for contender, action in contenders.items():
                    begun, busy = time.perf_counter(), time.process_time()
                    assert action(endpoint, columns) == options.files * ROWS
                    wall[contender].append(time.perf_counter() - begun)
                    used[contender].append(time.process_time() - busy)
            best = {contender: min(taken[1:]) for contender, taken in wall.items()}
            for contender, taken in best.items():
                ratio = best["pyarrow's scanner"] / taken
                print(
                    f"| {name} | {contender} | {taken:.2f} | {ratio:.2f} | {min(used[contender][1:]):.2f} |", flush=True
                )


if __name__ == "__main__":
    main()
