"""Measure StructuredDataset, local and on an object store: ``python -m benchmarks.structured [--quick]``.

The store is a server on loopback behind a proxy that counts bytes and delays every answer. Every contender runs in a
process of its own, so that neither the proxy nor another contender takes its interpreter. torch-dataloader-utils takes
part if it is installed (``pip install --no-deps torch-dataloader-utils``), on the store if s3fs is too.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks import data
from benchmarks.measure import Figure, at_most, figure, fresh, show

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import s3

FILES, GROUPS, ROWS = 10, 20, 8192
LATENCY = 0.02
BATCH = 1024
CODE = "import sys; from benchmarks.structured import run; run(sys.argv[1])"
UTILS = find_spec("torch_dataloader_utils") is not None
UTILS_ON_STORE = UTILS and find_spec("s3fs") is not None


@dataclass(frozen=True, kw_only=True)
class Job:
    """One pass: who reads what, and how."""

    by: str
    path: str
    output: str = "torch"
    workers: int = 0
    filtered: bool = False
    shuffle: bool = False
    threads: bool = True
    index: str = str(data.INDEX)
    store: dict[str, str] = field(default_factory=dict)
    stop: int = 0
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a pass took."""

    seconds: float
    rows: int
    bytes: int = 0
    state: dict[str, Any]
    requests: tuple[s3.Request, ...] = ()
    """The requests for files, without listings."""


def run(text: str) -> None:
    """Do a job in this process and print its result. Imports and first calls are not timed."""
    job = Job(**json.loads(text))
    warming = replace(job, path=str(data.tables(1, 1, 2 * BATCH)), store={}, stop=0, state={}, workers=0)
    for _ in opened(warming)[0]:
        pass
    begun = time.perf_counter()
    batches, dataset = opened(job)
    rows, state = 0, {}
    for number, batch in enumerate(batches, start=1):
        rows += len(batch["id"])
        if number == job.stop:
            state = dataset.state_dict() if dataset is not None else {}
            break
    taken = time.perf_counter() - begun
    print(json.dumps({"seconds": taken, "rows": rows, "state": state}), flush=True)
    os._exit(0)  # does not wait for what is still prefetched


def opened(job: Job) -> tuple[Any, Any]:
    """The batches of a job, and the dataset that knows its state."""
    filters = pc.field("bucket") == 7 % GROUPS if job.filtered else None
    if job.by == "scanner":
        return scanned(job, filters), None
    if job.by == "read":
        import midepoch as me

        given = {"storage_options": job.store} if job.store else {}
        dataset = me.read(job.path, filters=filters, index_dir=job.index, **given).with_format("arrow").batch(BATCH)
        return dataset, dataset
    options: dict[str, Any] = {"batch_size": BATCH, "filters": filters, "output_format": job.output}
    options |= {"num_workers": job.workers, "shuffle": job.shuffle}
    if job.by == "midepoch":
        import midepoch as me

        made = me.StructuredDataset.create_dataloader(
            job.path, "parquet", **options, storage_options=job.store or None, index_dir=job.index
        )
    else:
        from torch_dataloader_utils import StructuredDataset

        if job.store:
            client = {"endpoint_url": job.store["endpoint"], "region_name": job.store["region"]}
            keys = {name: job.store[name] for name in ("key", "secret")}
            options["storage_options"] = {**keys, "client_kwargs": client}
            # It reads footers without its storage_options, so it needs these to find the store.
            os.environ |= {"AWS_ENDPOINT_URL": job.store["endpoint"], "AWS_DEFAULT_REGION": job.store["region"]}
            os.environ |= {"AWS_ACCESS_KEY_ID": keys["key"], "AWS_SECRET_ACCESS_KEY": keys["secret"]}
        if job.shuffle:
            options["shuffle_buffer_size"] = 8192
        made = StructuredDataset.create_dataloader(job.path, "parquet", **options)
    if job.state:
        made[1].load_state_dict(job.state)
    return made


def scanned(job: Job, filters: pc.Expression | None) -> Iterator[Any]:
    """The batches of pyarrow's own scanner."""
    from pyarrow import fs

    path, system = job.path, None
    if job.store:
        keys = {"access_key": job.store["key"], "secret_key": job.store["secret"]}
        system = fs.S3FileSystem(**keys, endpoint_override=job.store["endpoint"], region=job.store["region"])
        path = path.removeprefix("s3://")
    dataset = ds.dataset(path, format="parquet", filesystem=system)
    for batch in dataset.to_batches(filter=filters, batch_size=BATCH, use_threads=job.threads):
        if batch.num_rows:
            yield batch


def done(job: Job, proxy: s3.Proxy | None = None, latency: float = 0.0) -> Done:
    """Do a job in a new process; with a proxy, also count what went through it."""
    if proxy is None:
        return Done(**json.loads(fresh(CODE, json.dumps(asdict(job)))))
    proxy.reset()
    proxy.latency = latency
    printed = json.loads(fresh(CODE, json.dumps(asdict(replace(job, store=proxy.options)))))
    while proxy.busy:
        time.sleep(0.01)
    return Done(
        **printed,
        bytes=proxy.body_bytes,
        requests=tuple(one for one in proxy.requests if one.key.endswith(".parquet")),
    )


def bests(jobs: dict[str, Job], repeats: int, proxy: s3.Proxy | None = None, latency: float = 0.0) -> dict[str, Done]:
    """The shortest pass of each; all of them once in each round."""
    found: dict[str, list[Done]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            found[name].append(done(job, proxy, latency))
    rows = {name: one.rows for name, several in found.items() for one in several}
    if len(set(rows.values())) > 1:
        raise RuntimeError(f"the contenders deliver different numbers of rows: {rows}")
    return {name: min(several, key=lambda one: one.seconds) for name, several in found.items()}


def contenders(path: str, utils: bool, **options: Any) -> dict[str, Job]:
    """Jobs that read the same rows: into Arrow batches, then into tensors."""
    jobs = {
        "me.read": Job(by="read", path=path, **options),
        "scanner": Job(by="scanner", path=path, **options),
        "scanner on one thread": Job(by="scanner", path=path, threads=False, **options),
        "StructuredDataset": Job(by="midepoch", path=path, **options),
    }
    return jobs | ({"torch-dataloader-utils": Job(by="utils", path=path, **options)} if utils else {})


def compared(times: dict[str, Done], what: str) -> Iterator[Figure]:
    """Rows per second against the others."""
    rivals = {"scanner": "me.read", "scanner on one thread": "me.read", "torch-dataloader-utils": "StructuredDataset"}
    for rival, ours in rivals.items():
        if rival in times:
            yield figure(f"rows/s, {what}: {ours} / {rival}", times[rival].seconds / times[ours].seconds, "×")


def both(path: str, **options: Any) -> dict[str, Job]:
    """Two loaders with the same arguments."""
    return {
        "StructuredDataset": Job(by="midepoch", path=path, **options),
        "torch-dataloader-utils": Job(by="utils", path=path, **options),
    }


def local(path: str, repeats: int) -> Iterator[Figure]:
    """Files in the page cache, indexed before."""
    done(Job(by="read", path=path, filtered=True))
    yield from compared(bests(contenders(path, UTILS), repeats), "all")
    yield from compared(bests(contenders(path, UTILS, filtered=True), repeats), "1 row group in 20")
    if UTILS:
        yield from compared(bests(both(path, shuffle=True), repeats), "all, shuffled")
        yield from compared(bests(both(path, workers=2), repeats), "all, 2 workers")


def remote(path: str, size: int, proxy: s3.Proxy, repeats: int) -> Iterator[Figure]:
    """The same files in a store that answers after 20 ms."""
    index = data.FOLDER / "index-structured"
    shutil.rmtree(index, ignore_errors=True)
    first = {
        "me.read, never indexed": Job(by="read", path=path, index=str(index), stop=1),
        "me.read, indexed": Job(by="read", path=path, index=str(index), stop=1),
        "scanner": Job(by="scanner", path=path, stop=1),
    }
    times = bests(first, 1, proxy, LATENCY)
    for name in ("me.read, never indexed", "me.read, indexed"):
        yield figure(
            f"opening and first batch, time: {name} / scanner", times[name].seconds / times["scanner"].seconds, "×"
        )
    done(Job(by="read", path=path, filtered=True), proxy)  # so that the index has the statistics
    for what, options in {"all": {}, "1 row group in 20": {"filtered": True}}.items():
        times = bests(contenders(path, UTILS_ON_STORE, **options), repeats, proxy, LATENCY)
        yield from compared(times, what)
        for name, one in times.items():
            yield figure(f"bytes, {what}: {name} / all files", one.bytes / size, "×")
            yield figure(f"requests, {what}: {name}", len(one.requests))


def resumed(path: str, folder: Path, proxy: s3.Proxy) -> Iterator[Figure]:
    """What a run reads again after a resume in the middle of a row group in the middle of the data."""
    files = sorted(folder.iterdir())
    groups, rows = pq.read_metadata(files[0]).num_row_groups, pq.read_metadata(files[0]).row_group(0).num_rows
    whole = len(files) * groups * rows
    stop = (whole // 2 + rows // 2) // BATCH
    loaders = both(path, stop=stop)
    for name in loaders if UTILS_ON_STORE else ["StructuredDataset"]:
        before = done(loaders[name], proxy)
        after = done(replace(loaders[name], stop=0, state=before.state), proxy)
        files_done, finished, under_way = read_again(after.requests, files, before.rows)
        limit = at_most if name == "StructuredDataset" else (lambda _, *figure: figure(*figure))
        yield limit(0, f"{name}: rows delivered twice / rows before", (before.rows + after.rows - whole) / before.rows)
        yield limit(0, f"{name}: requests for files that were finished", files_done)
        yield limit(0, f"{name}: bytes read again of finished row groups", finished / 1e6, "MB")
        yield limit(1.01, f"{name}: bytes read again of the row group under way / its bytes", under_way, "×")
    job = Job(by="midepoch", path=path, stop=stop, shuffle=True)
    before = done(job, proxy)
    after = done(replace(job, stop=0, state=before.state), proxy)
    left = (whole - before.rows) / whole * sum(file.stat().st_size for file in files)
    size = group_bytes(files[0], 0)[1] - group_bytes(files[0], 0)[0]
    yield figure("midepoch, shuffled: rows delivered twice", before.rows + after.rows - whole)
    yield figure(
        "midepoch, shuffled: bytes beyond those of the remaining rows, in row groups", (after.bytes - left) / size
    )


def read_again(requests: tuple[s3.Request, ...], files: list[Path], delivered: int) -> tuple[int, int, float]:
    """For what is before a row: requests for whole files, bytes of whole row groups, share of the next row group."""
    numbers = {file.name: number for number, file in enumerate(files)}
    meta = pq.read_metadata(files[0])
    groups, here = meta.num_row_groups, delivered // meta.row_group(0).num_rows
    files_done = finished = under_way = 0
    for one in requests:
        number = numbers[one.key.rpartition("/")[2]]
        files_done += (number + 1) * groups <= here
        if not one.is_read:
            continue
        first, _, last = one.range.removeprefix("bytes=").partition("-")
        begin, end = int(first or 0), int(last or files[number].stat().st_size - 1) + 1
        for group in range(groups):
            start, stop = group_bytes(files[number], group)
            shared = max(0, min(end, stop) - max(begin, start))
            finished += shared * (number * groups + group < here)
            under_way += shared * (number * groups + group == here)
    start, stop = group_bytes(files[here // groups], here % groups)
    return files_done, finished, under_way / (stop - start)


@cache
def group_bytes(file: Path, group: int) -> tuple[int, int]:
    """The byte range of a row group in its file."""
    row_group = pq.read_metadata(file).row_group(group)
    columns = [row_group.column(number) for number in range(row_group.num_columns)]
    starts = [one.dictionary_page_offset or one.data_page_offset for one in columns]
    return min(starts), max(start + one.total_compressed_size for start, one in zip(starts, columns, strict=True))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    parser.add_argument("--only", choices=["local", "store", "resuming"], help="one of the tables")
    chosen = parser.parse_args()
    files, rows, repeats = (3, BATCH * 4, 1) if chosen.quick else (FILES, ROWS, 3)
    folder = data.tables(files, GROUPS, rows)
    data.tables(1, 1, 2 * BATCH)
    print(f"load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if not UTILS_ON_STORE:
        missing = "s3fs" if UTILS else "torch-dataloader-utils"
        print(f"{missing} is not installed: what needs it is left out")
    if chosen.only in (None, "local"):
        show("Structured files, local", local(str(folder), repeats))
    if chosen.only == "local":
        return
    with s3.serving() as port, s3.proxying(port) as proxy:
        s3.put_all(port, "bench", {f"data/{file.name}": file.read_bytes() for file in folder.iterdir()})
        size = sum(file.stat().st_size for file in folder.iterdir())
        if chosen.only in (None, "resuming"):
            show("Going on in the middle of a row group", resumed("s3://bench/data", folder, proxy))
        if chosen.only in (None, "store"):
            show(
                "Structured files on a store, 20 ms a request", remote("s3://bench/data", size, proxy, min(repeats, 2))
            )


if __name__ == "__main__":
    main()
