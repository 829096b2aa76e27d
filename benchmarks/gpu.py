"""Measure what a GPU is fed, on a machine with 16 cores: ``python -m benchmarks.gpu [--quick] [--device cpu]``.

It takes less than four minutes and prints Markdown, which it also writes to ``gpu.md`` in the folder ``$OUT``, if set.
It needs Pillow and tokenizers, and no network; simplejpeg is measured too if it is there. ``--quick --device cpu``
shows on any machine that everything runs.
"""

import argparse
import importlib.util
import io
import logging
import multiprocessing
import os
import platform
import queue
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

import midepoch as me
from benchmarks import data
from benchmarks.measure import Figure, at_least, at_most, figure, show
from benchmarks.shuffle_training import Model, Sizes

TOKEN_BATCH = TEXT_BATCH = 64
IMAGE_BATCH = 256
LINKS = 64
IMAGE_ROUNDS = 3
PICTURES = 400
"""Different pictures; the rows repeat them."""
GPT = Sizes(length=2048, vocabulary=50_304, width=768, layers=12)
SMALL_GPT = Sizes(length=2048, vocabulary=4096, width=32, layers=1)
LAST_START = 400
"""No part of the benchmark is started after this number of seconds."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is measured."""

    device: torch.device
    seconds: float
    workers: Sequence[int]
    token_rows: int
    text_rows: int
    images: int
    only: Sequence[str] = ()
    """The parts that are measured, by the names of their functions; none means all."""

    @property
    def is_cuda(self) -> bool:
        """True if there are streams to wait for."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if self.is_cuda:
            torch.cuda.synchronize()


def linked(folder: Path) -> Path:
    """The files of a folder many times over, as hard links: so that no epoch ends while it is measured."""
    many = data.FOLDER / f"{folder.name}-linked"
    if not many.exists():
        many.mkdir()
        for copy in range(LINKS):
            for path in folder.iterdir():
                os.link(path, many / f"{copy:03}-{path.name}")
    return many


def per_second(
    batches: Iterable[Any], seconds: float, wait: Callable[[], None] = lambda: None, workers: int = 1, ahead: int = 2
) -> float:
    """Batches a second, after a quarter of the time, in which workers start, and ``ahead`` batches of each worker.

    Every worker gives as many batches.
    """
    started, begun, counted = time.perf_counter(), 0.0, 0
    for number, _ in enumerate(batches, start=1):
        if number % workers:
            continue
        now = time.perf_counter()
        if not begun and now - started >= seconds / 4 and number >= ahead * workers:
            wait()
            begun, counted = time.perf_counter(), number
        elif begun and now - begun >= seconds:
            wait()
            return (number - counted) / (time.perf_counter() - begun)
    raise RuntimeError("There are too few batches to measure.")


def measured(loader: Any, settings: Settings, move: Callable[[Any], Any] | None = None, longer: float = 1.0) -> float:
    """Batches a second of a loader, which is closed then."""
    batches = loader if move is None else map(move, loader)
    rate = per_second(batches, longer * settings.seconds, settings.wait, loader.num_workers or 1)
    if isinstance(loader, me.Loader):
        loader.close()
    return rate


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch of torch's DataLoader on the device."""
    values = batch if isinstance(batch, list | tuple) else [batch]
    return [value.to(device, non_blocking=True) for value in values]


class Rows(TorchDataset):
    """Rows of tokens in a memory-mapped file, as many training scripts read them."""

    def __init__(self, path: Path, rows: int) -> None:
        self._rows, self._path, self._map = rows, path, None

    def __len__(self) -> int:
        """The rows; more than there are, so that no epoch ends while it is measured."""
        return 1000 * self._rows

    def __getitem__(self, number: int) -> torch.Tensor:
        """A row."""
        if self._map is None:  # one map a process
            self._map = np.memmap(self._path, np.int32, "r", shape=(self._rows, data.TOKENS))
        return torch.from_numpy(np.array(self._map[number % self._rows]))


def memmap_of(rows: int) -> Path:
    """The tokens of ``data.tokens`` as plain numbers in a file."""
    path = data.FOLDER / f"tokens-{rows}.bin"
    if not path.exists():
        with path.open("wb") as file, pa.ipc.open_stream(data.tokens(rows) / "tokens.arrow") as stream:
            for batch in stream:
                file.write(np.ascontiguousarray(batch.column(0).flatten().to_numpy()))
    return path


def scattered(rows: int) -> Iterator[int]:
    """Row numbers in an order that is not that of the file. A permutation of all of them would take seconds."""
    while True:
        yield from np.random.default_rng(1).permutation(rows).tolist()


def tokens(settings: Settings) -> list[Figure]:
    """Rows of 2,048 tokens to the device."""
    rows = settings.token_rows
    in_order = me.read(linked(data.tokens(rows)), index_dir=data.INDEX).with_format("torch").repeat()
    dataset = in_order.shuffle(1)
    memmap, million = Rows(memmap_of(rows), rows), TOKEN_BATCH * data.TOKENS / 1e6
    figures = []
    for workers in (0, *settings.workers):
        loader = me.Loader(dataset, batch_size=TOKEN_BATCH, num_workers=workers, device=settings.device)
        rate, name = million * measured(loader, settings), f"midepoch, {workers or 'no'} workers"
        figures.append(at_least(1600, name, rate, "M tokens/s") if workers == 2 else figure(name, rate, "M tokens/s"))
    plain = me.Loader(in_order, batch_size=TOKEN_BATCH, num_workers=2, device=settings.device)
    figures.append(
        at_least(1600, "midepoch, 2 workers, not shuffled", million * measured(plain, settings), "M tokens/s")
    )
    pinned = me.Loader(dataset, batch_size=TOKEN_BATCH, num_workers=2, pin_memory=True)
    rate = million * measured(pinned, settings, lambda batch: to_device(batch["tokens"], settings.device))
    figures.append(figure("midepoch, 2 workers, pin_memory=True and .to(device)", rate, "M tokens/s"))
    rate = million * measured(me.Loader(dataset, batch_size=TOKEN_BATCH, num_workers=2), settings)
    figures.append(figure("midepoch, 2 workers, not copied to the device", rate, "M tokens/s"))
    for workers in (0, *settings.workers[1::2]):
        plain = DataLoader(
            memmap,
            batch_size=TOKEN_BATCH,
            sampler=scattered(rows),  # type: ignore[arg-type]
            num_workers=workers,
            pin_memory=settings.is_cuda,
        )
        rate = million * measured(plain, settings, partial(to_device, device=settings.device))
        figures.append(figure(f"DataLoader over a memmap, {workers or 'no'} workers", rate, "M tokens/s"))
    if settings.is_cuda:
        figures.append(figure("the device alone, from pinned memory", million * _bare_copies(settings), "M tokens/s"))
    return figures


def _bare_copies(settings: Settings) -> float:
    batch = torch.zeros((TOKEN_BATCH, data.TOKENS), dtype=torch.int32).pin_memory()
    return per_second((batch.to(settings.device, non_blocking=True) for _ in range(10**9)), 1.0, settings.wait)


def texts(settings: Settings) -> list[Figure]:
    """Batches of Python values, which stay on the processor."""
    dataset = me.read(linked(data.texts(settings.text_rows)), index_dir=data.INDEX).shuffle(1).repeat()
    rates = {}
    for workers in (0, *settings.workers):
        loader = me.Loader(dataset, batch_size=TEXT_BATCH, num_workers=workers)
        rates[workers] = TEXT_BATCH * measured(loader, settings)
    figures = [figure(f"{workers or 'no'} workers", rate, "rows/s") for workers, rate in rates.items()]
    for workers in settings.workers:
        what, ratio = f"{workers} workers / in process", rates[workers] / rates[0]
        figures.append(at_least(1.0, what, ratio, "×") if workers >= 2 else figure(what, ratio, "×"))
    return figures


def costly_maps(settings: Settings) -> list[Figure]:
    """A function that works for 1 ms a row."""
    dataset = me.read(data.texts(settings.text_rows), index_dir=data.INDEX).select_columns(["number"])
    slow = dataset.map(_work_for_a_millisecond).repeat()
    one, figures = None, []
    for workers in (0, *settings.workers):
        loader = me.Loader(slow, batch_size=TEXT_BATCH, num_workers=workers)
        rate = TEXT_BATCH * measured(loader, settings)
        figures.append(figure(f"{workers or 'no'} workers", rate, "rows/s"))
        one = one or rate
        if workers:
            figures.append(at_least(0.9, f"{workers} workers / in process / {workers}", rate / one / workers, "×"))
    return figures


def _work_for_a_millisecond(row: dict[str, Any]) -> dict[str, Any]:
    end = time.thread_time() + 0.001
    while time.thread_time() < end:
        pass
    return row


@cache
def pictures() -> list[bytes]:
    """JPEG files of 256 × 256."""
    from PIL import Image

    base, files = np.random.default_rng(0).integers(0, 255, (28, 28, 3), dtype=np.uint8), []
    for number in range(PICTURES):
        file = io.BytesIO()
        picture = Image.fromarray(np.roll(base, number, 0)).resize((256, 256), Image.Resampling.BICUBIC)
        picture.save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def decode(file: bytes) -> Any:
    """224 × 224 pixels, as an array."""
    from PIL import Image

    return np.array(Image.open(io.BytesIO(file)).convert("RGB").resize((224, 224)))


def decoded(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its picture as a tensor."""
    return {"image": torch.from_numpy(decode(row["image"])), "number": row["number"]}


class Pictures(TorchDataset):
    """The same pictures for torch's DataLoader."""

    def __len__(self) -> int:
        """More than are measured."""
        return 10**6

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        """A picture and its number."""
        return torch.from_numpy(decode(pictures()[number % PICTURES])), number


def images(settings: Settings) -> list[Figure]:
    """JPEG files, decoded by Pillow, to batches on the device.

    Workers take turns, so in the long run all are as fast as the slowest. Workers and bare decoders run in turn, on the
    same cores, which are not all as fast.
    The ratio is the median of those of neighbours, because a machine is not as fast in every second.
    """
    table = pa.table({"image": [pictures()[number % PICTURES] for number in range(settings.images)]})
    table = table.append_column("number", pa.array(range(settings.images)))
    rows = me.read(_stream_of(table, data.FOLDER / f"images-{settings.images}"), index_dir=data.INDEX).shuffle(1)
    dataset = rows.with_format("torch").map(decoded).repeat()
    seconds = 1.5 * settings.seconds
    figures = []
    for workers in [number for number in settings.workers if number != 2]:
        loader = _images_loader(dataset, workers, settings)
        batches, ours, bare, slowest = iter(loader), [], [], []
        for _ in range(IMAGE_ROUNDS):
            # Meanwhile workers wait, with some batches ahead.
            rates = _rates_at_once(_decode_next, workers, seconds, prepare=stay_on_core)
            bare.append(sum(rates))
            slowest.append(workers * min(rates) / sum(rates))
            ours.append(IMAGE_BATCH * per_second(batches, seconds, settings.wait, workers, ahead=4))
        loader.close()
        ratios = [one / other for one, other in zip(ours, bare, strict=True)]
        what = f"midepoch / bare decoders, {workers}: median of {min(ratios):.2f} to {max(ratios):.2f}"
        figures += [
            figure(f"midepoch, {workers} workers", median(ours), "images/s"),
            figure(f"{workers} bare decoders", median(bare), "images/s"),
            at_least(0.95, what, median(ratios), "×"),
            figure(f"{workers} decoders as fast as the slowest / bare decoders", median(slowest), "×"),
        ]
    plain = DataLoader(
        Pictures(),
        batch_size=IMAGE_BATCH,
        num_workers=workers,
        pin_memory=settings.is_cuda,
        worker_init_fn=stay_on_core,
    )
    theirs = IMAGE_BATCH * measured(plain, settings, partial(to_device, device=settings.device), longer=1.5)
    figures.append(figure(f"DataLoader, {workers} workers", theirs, "images/s"))
    if importlib.util.find_spec("simplejpeg"):
        turbo = rows.decode("image", decoder="turbo", size=224).with_format("torch").repeat()
        loader = me.Loader(turbo, batch_size=IMAGE_BATCH, num_workers=workers, device=settings.device)
        rate = IMAGE_BATCH * measured(loader, settings, longer=1.5)
        figures.append(figure(f'midepoch, {workers} workers, decode(decoder="turbo", size=224)', rate, "images/s"))
    return figures


def _images_loader(dataset: me.Dataset, workers: int, settings: Settings) -> me.Loader[Any]:
    return me.Loader(
        dataset,
        batch_size=IMAGE_BATCH,
        num_workers=workers,
        device=settings.device,
        worker_init_fn=stay_on_core,
    )


def stay_on_core(number: int) -> None:
    """Let a process, one of several that are numbered from 0 on, run on a core of its own. The first is left free."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [cores[(number + 1) % len(cores)]])


def _stream_of(table: pa.Table, folder: Path) -> Path:
    if not folder.exists():
        folder.mkdir(parents=True)
        with pa.ipc.new_stream(folder / "images.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=500)
    return folder


def _decode_next(number: int) -> None:
    decode(pictures()[number % PICTURES])


def _at_once(work: Callable[[int], Any], number: int, seconds: float, *, threads: bool = False) -> float:
    """Calls a second of processes, or threads, that do nothing but some work, all at once."""
    return sum(_rates_at_once(work, number, seconds, threads=threads))


def _rates_at_once(
    work: Callable[[int], Any],
    number: int,
    seconds: float,
    *,
    threads: bool = False,
    prepare: Callable[[int], None] = lambda number: None,
) -> list[float]:
    """The same, of each of them. Each calls ``prepare`` first, with its number."""
    work(0)
    context = multiprocessing.get_context("fork")
    rates: Any = queue.SimpleQueue() if threads else context.SimpleQueue()
    start: Callable[..., Any] = threading.Thread if threads else context.Process  # type: ignore[assignment]
    started = [start(target=_work_for, args=(work, seconds, rates, partial(prepare, one))) for one in range(number)]
    for one in started:
        one.start()
    found = [float(rates.get()) for _ in started]
    for one in started:
        one.join()
    return found


def _work_for(work: Callable[[int], Any], seconds: float, rates: Any, prepare: Callable[[], None]) -> None:
    prepare()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        work(count)
        count += 1
    rates.put(count / (time.perf_counter() - begun))


def threads(settings: Settings) -> list[Figure]:
    """What threads of one process do of the work of workers, against as many processes."""
    rows, number = settings.text_rows, settings.workers[-2]
    path = data.FOLDER / f"texts-{rows}.zstd.parquet"
    if not path.exists():
        table = pa.Table.from_pylist(me.read(data.texts(rows), index_dir=data.INDEX).head(8000))
        pq.write_table(table, path, compression="zstd", row_group_size=2000)
    texts = [row["text"] for row in me.read(data.texts(rows), index_dir=data.INDEX).head(64)]
    trained = tokenizer(rows)
    works: dict[str, Callable[[int], Any]] = {
        "a Parquet row group (zstd, 2,000 rows)": lambda number: _row_group(path, number),
        "the same, to Python values": lambda number: _row_group(path, number).to_pylist(),
        "64 texts to tokens": lambda number: [one.ids for one in trained.encode_batch(texts)],
        "a JPEG by Pillow": _decode_next,
    }
    figures = []
    for name, work in works.items():
        one = _at_once(work, 1, settings.seconds / 2)
        for kind in ("threads", "processes"):
            rate = _at_once(work, number, settings.seconds / 2, threads=kind == "threads")
            figures.append(figure(f"{name}: {number} {kind} / one process", rate / one, "×"))
    return figures


def _row_group(path: Path, number: int) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return file.read_row_group(number % file.num_row_groups, use_threads=False)


@cache
def tokenizer(rows: int) -> Any:
    """A small tokenizer that was trained on the texts."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    texts = (row["text"] for row in me.read(data.texts(rows), index_dir=data.INDEX).take(1000))
    trained.train_from_iterator(texts, vocab_size=4000, show_progress=False)
    return trained


def tokenised(columns: dict[str, list[str]], rows: int) -> dict[str, Any]:
    """Texts as tokens."""
    return {"input_ids": [np.array(one.ids, np.int32) for one in tokenizer(rows).encode_batch(columns["text"])]}


def waits(settings: Settings) -> list[Figure]:
    """A loop on the device whose workers tokenise and pack 2.4 times as fast as it trains."""
    rows, workers = settings.text_rows, min(4, settings.workers[-1])
    tokenizer(rows)
    shuffled = me.read(data.texts(rows), index_dir=data.INDEX).shuffle(1).select_columns(["text"])
    mapped = shuffled.map(partial(tokenised, rows=rows), batched=True, batch_size=1024)
    packed = mapped.with_format("torch").pack(2048).batch(8).repeat()
    figures = []
    for name, options in (("defaults", {}), ("prefetch_factor=2", {"prefetch_factor": 2})):
        alone = me.Loader(packed, num_workers=workers, device=settings.device)
        step = 2.4 / measured(alone, settings)
        loader = me.Loader(packed, num_workers=workers, device=settings.device, **options)
        waited = _waited(loader, _step(step, settings), settings)
        part = 100 * waited.part
        what = f"tokenise and pack, {workers} workers, steps of {1000 * step:.3g} ms, {name}"
        figures += [
            figure(f"{what}: waited", part, "%") if options else at_most(1.0, f"{what}: waited", part, "%"),
            figure(f"{what}: longest wait", 1000 * waited.longest, "ms"),
        ]
        loader.close()
    return figures


def training(settings: Settings) -> list[Figure]:
    """A GPT of 124 million parameters that trains on packs of 8 x 2,048 tokens, made by workers that tokenise."""
    rows = settings.text_rows
    tokenizer(rows)
    shuffled = me.read(data.texts(rows), index_dir=data.INDEX).shuffle(1).select_columns(["text"])
    mapped = shuffled.map(partial(tokenised, rows=rows), batched=True, batch_size=1024)
    packed = mapped.with_format("torch").pack(2048, pad=0).batch(8).repeat()
    model = Model(GPT if settings.is_cuda else SMALL_GPT).to(settings.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(batch: dict[str, torch.Tensor]) -> float:
        with torch.autocast(settings.device.type, torch.bfloat16):
            loss = model(batch["input_ids"].long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    figures = []
    for workers in [number for number in settings.workers if number in (2, 4, 8)]:
        loader = me.Loader(packed, num_workers=workers, device=settings.device)
        waited = _waited(loader, step, settings)
        loader.close()
        what = f"{workers} workers, steps of {1000 * waited.step:.3g} ms"
        part = 100 * waited.part
        name = f"{what}: waited"
        figures += [
            at_most(1.0, name, part, "%") if workers == 4 else figure(name, part, "%"),
            figure(f"{what}: longest wait", 1000 * waited.longest, "ms"),
        ]
    return figures


class Waited(NamedTuple):
    """The part of the time that a loop waits, its longest wait, and how long a step takes."""

    part: float
    longest: float
    step: float


def _waited(loader: me.Loader[Any], step: Callable[[Any], Any], settings: Settings) -> Waited:
    """How long a loop waits, after some seconds."""
    taken, first = iter(loader), time.perf_counter()
    while time.perf_counter() - first < settings.seconds:
        step(next(taken))
    begun, waits = time.perf_counter(), []
    while time.perf_counter() - begun < 2 * settings.seconds:
        asked = time.perf_counter()
        batch = next(taken)
        waits.append(time.perf_counter() - asked)
        step(batch)
    passed = time.perf_counter() - begun
    return Waited(sum(waits) / passed, max(waits), passed / len(waits))


def _step(seconds: float, settings: Settings) -> Callable[[Any], Any]:
    """What a training step does for some seconds: products of matrices on the device, and ``loss.item()`` at the end.

    Without CUDA it is a pause, because the workers need the processor.
    """
    if not settings.is_cuda:
        return lambda batch: time.sleep(seconds)
    matrix = torch.randn((4096, 4096), dtype=torch.bfloat16, device=settings.device)

    def step(products: int) -> float:
        values = matrix
        for _ in range(products):
            values = matrix @ values
            values = values / values.norm()
        return float(values[0, 0].item())

    step(10)
    begun = time.perf_counter()
    step(100)
    products = max(1, round(100 * seconds / (time.perf_counter() - begun)))
    return lambda batch: step(products)


def exactness(settings: Settings) -> list[Figure]:
    """Batches on the device equal those of the processor, also after a stop and with other workers."""
    dataset = me.read(data.tokens(settings.token_rows), index_dir=data.INDEX).take(3000).shuffle(1).lanes(4)
    plain = [batch["tokens"] for batch in me.Loader(dataset.with_format("torch"), batch_size=TOKEN_BATCH)]
    wrong = cuts = 0
    for workers, other in ((0, 2), (1, 0), (2, 4), (4, 1)):
        make = partial(me.Loader, dataset.with_format("torch"), batch_size=TOKEN_BATCH, device=settings.device)
        wrong += _differ(plain, [batch["tokens"] for batch in make(num_workers=workers)])
        for cut in (1, 2, 17, len(plain) - 1):
            loader, received = make(num_workers=workers), []
            for batch in loader:
                received.append(batch["tokens"])
                if len(received) == cut:
                    break
            resumed = make(num_workers=other)
            resumed.load_state_dict(loader.state_dict())
            wrong += _differ(plain, received + [batch["tokens"] for batch in resumed])
            cuts += 1
    return [at_most(0, f"wrong batches in {cuts} stops and resumes", wrong)]


def _differ(plain: list[torch.Tensor], received: list[torch.Tensor]) -> int:
    pairs = zip(plain, received, strict=False)
    return abs(len(plain) - len(received)) + sum(not torch.equal(one, other.cpu()) for one, other in pairs)


class Tee(io.TextIOBase):
    """Writes to several files."""

    def __init__(self, *files: Any) -> None:
        self._files = files

    def write(self, text: str) -> int:
        """Write to all, at once."""
        for file in self._files:
            file.write(text)
            file.flush()
        return len(text)


def run(settings: Settings) -> None:
    """Measure part after part. One that fails is reported, and the others still run."""
    begun = time.perf_counter()
    name = torch.cuda.get_device_name() if settings.is_cuda else "no GPU"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, pyarrow {pa.__version__}"
    print(f"## What a GPU is fed\n\n{name}, {os.cpu_count()} cores, {versions}.")
    parts: dict[str, Callable[[Settings], list[Figure]]] = {
        "Exactness": exactness,
        "Rows of 2,048 tokens, batches of 64": tokens,
        "Text, batches of 64": texts,
        "A function that takes 1 ms a row": costly_maps,
        "JPEG to 224 × 224, batches of 256": images,
        "Waiting": waits,
        "Training": training,
        "Threads": threads,
    }
    for title, part in parts.items():
        if settings.only and part.__name__ not in settings.only:
            continue
        seconds = time.perf_counter() - begun
        if seconds > LAST_START:
            print(f"\n### {title}\n\nNot measured: {seconds:.0f} seconds have passed.")
            continue
        try:
            show(title, part(settings))
        except Exception:
            print(f"\n### {title}\n\n```\n{traceback.format_exc()}```")
        print(f"\n{time.perf_counter() - begun:.0f} seconds have passed.")


def main() -> None:
    """Run the benchmark, and print and write its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short, to see that everything runs")
    parser.add_argument("--only", nargs="+", default=[], help="some parts: exactness tokens texts costly_maps images …")
    parser.add_argument("--device", default="cuda", help="a device of torch; cpu to see that everything runs")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
    logging.disable(logging.INFO)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sizes: dict[str, Any] = {"workers": (1, 2, 4, 8, 14), "token_rows": 32_000, "text_rows": 60_000, "images": 20_000}
    if given.quick:
        sizes = {"workers": (1, 2), "token_rows": 4_000, "text_rows": 12_000, "images": 1_000}
    settings = Settings(
        device=torch.device(given.device), seconds=0.5 if given.quick else 2.0, only=given.only, **sizes
    )
    folder = os.environ.get("OUT")
    path = Path(folder, "gpu.md") if folder else Path(os.devnull)
    with path.open("w") as file, redirect_stdout(Tee(sys.stdout, file)):  # type: ignore[type-var]
        run(settings)


if __name__ == "__main__":
    main()
