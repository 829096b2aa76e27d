"""The data for the benchmarks: generated on demand in benchmarks/data, the same on every machine."""

import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).parent / "data"
INDEX = FOLDER / "index"
BATCH_ROWS = 1000
MEDIAN_LETTERS, SPREAD = 1300, 0.8
TOKENS = 2048
GROUP_BYTES = 50 << 20


def texts(rows: int, files: int = 4) -> Path:
    """Rows of text with three other columns, in Arrow streams as ``datasets`` writes them."""

    def write(folder: Path) -> None:
        rng, pool = np.random.default_rng(1), _pool()
        each = min(BATCH_ROWS, rows // files)
        for number, first in enumerate(range(0, rows, rows // files)):
            starts = range(first, min(first + rows // files, rows), each)
            _write_stream(folder / f"part-{number:04}.arrow", (_texts(rng, pool, at, each) for at in starts))

    return _made(f"texts-{rows}", write)


def tokens(rows: int) -> Path:
    """Rows of ``TOKENS`` int32 tokens, in one Arrow stream."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(2)
        _write_stream(folder / "tokens.arrow", (_tokens(rng) for _ in range(0, rows, BATCH_ROWS)))

    return _made(f"tokens-{rows}", write)


def documents(rows: int, median: int = 1300) -> Path:
    """Documents of uint16 tokens whose lengths are those of :func:`document_lengths`, in one Arrow stream."""

    def write(folder: Path) -> None:
        rng, lengths = np.random.default_rng(5), document_lengths(rows, median)
        parts = (lengths[at : at + BATCH_ROWS] for at in range(0, rows, BATCH_ROWS))
        _write_stream(folder / "documents.arrow", (_documents(rng, part) for part in parts))

    return _made(f"documents-{rows}" if median == 1300 else f"documents-{rows}-{median}", write)


def document_lengths(rows: int, median: int = 1300, sigma: float = 1.0) -> npt.NDArray[np.int64]:
    """Lognormal lengths, like those of documents on the web."""
    drawn = np.random.default_rng(6).lognormal(np.log(median), sigma, rows)
    return np.maximum(drawn, 1).astype(np.int64)


def many(files: int, rows: int) -> Path:
    """Many files of many small rows: hard links to three files."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(3)
        for number in range(3):
            _write_stream(folder / f"part-{number:04}.arrow", (_numbers(rng) for _ in range(0, rows, BATCH_ROWS)))
        for number in range(3, files):
            os.link(folder / f"part-{number % 3:04}.arrow", folder / f"part-{number:04}.arrow")

    return _made(f"many-{files}-{rows}", write)


def tiny(files: int) -> Path:
    """Many files of one row, a thousand per folder. A file system allows about 65,000 links to one file."""

    def write(folder: Path) -> None:
        first: list[Path] = []
        for number in range(files):
            path = folder / f"{number // 1000:04}" / f"{number % 1000:03}.arrow"
            path.parent.mkdir(exist_ok=True)
            if number < 10:
                _write_stream(path, iter([pa.RecordBatch.from_pydict({"id": [number]})]))
                first.append(path)
            else:
                os.link(first[number % 10], path)

    return _made(f"tiny-{files}", write)


def parquet(groups: int, files: int = 3) -> Path:
    """The same rows as :func:`texts`, in Parquet row groups of about ``GROUP_BYTES`` decoded."""

    def write(folder: Path) -> None:
        rng, pool = np.random.default_rng(4), _pool()
        rows = int(GROUP_BYTES / (MEDIAN_LETTERS * np.exp(SPREAD**2 / 2)))
        for number, first in enumerate(range(0, groups, groups // files)):
            path = folder / f"part-{number:04}.parquet"
            with pq.ParquetWriter(path, _texts(rng, pool, 0, 1).schema, use_dictionary=False) as writer:
                for group in range(first, min(first + groups // files, groups)):
                    writer.write_batch(_texts(rng, pool, group * rows, rows), row_group_size=rows)

    return _made(f"parquet-{groups}", write)


def zstd_texts(rows: int, files: int = 4) -> Path:
    """The rows of :func:`texts`, in Parquet compressed by zstd, in row groups of 2,000."""

    def write(folder: Path) -> None:
        rng, pool = np.random.default_rng(1), _pool()
        for number, first in enumerate(range(0, rows, rows // files)):
            path = folder / f"part-{number:04}.parquet"
            with pq.ParquetWriter(path, _texts(rng, pool, 0, 1).schema, compression="zstd") as writer:
                for at in range(first, min(first + rows // files, rows), 2000):
                    writer.write_batch(_texts(rng, pool, at, min(2000, rows // files)), row_group_size=2000)

    return _made(f"zstd-texts-{rows}", write)


def jpegs(rows: int, files: int = 4) -> Path:
    """Smooth random pictures of 500 × 375 as JPEG, with their numbers, in Arrow streams of 100 rows a batch."""

    def write(folder: Path) -> None:
        rng, each = np.random.default_rng(9), min(100, rows // files)
        for number, first in enumerate(range(0, rows, rows // files)):
            starts = range(first, first + rows // files, each)
            batches = (
                pa.RecordBatch.from_pydict({"number": range(at, at + each), "jpeg": [_jpeg(rng) for _ in range(each)]})
                for at in starts
            )
            _write_stream(folder / f"part-{number:04}.arrow", batches)

    return _made(f"jpegs-{rows}", write)


def tars(rows: int, shards: int = 8, pictures: int = 500) -> Path:
    """Samples of a JPEG and a class in tar files, as WebDataset writes them. The pictures repeat."""

    def member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))

    def write(folder: Path) -> None:
        rng, each = np.random.default_rng(10), -(-rows // shards)
        images = [_jpeg(rng) for _ in range(min(pictures, rows))]
        for first in range(0, rows, each):
            with tarfile.open(folder / f"part-{first // each:04}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
                for number in range(first, min(first + each, rows)):
                    member(tar, f"{number:09}.jpg", images[number % len(images)])
                    member(tar, f"{number:09}.cls", b"%d" % (number % 1000))

    return _made(f"tars-{rows}", write)


def sources(files: int, rows: int) -> Path:
    """The files that a dataset is prepared from: Parquet files of small rows, one row group each."""

    def write(folder: Path) -> None:
        for number in range(files):
            ids = range(number * rows, (number + 1) * rows)
            table = pa.table(
                {"id": pa.array(ids, pa.int64()), "text": [f"this is the text of row {row}" for row in ids]}
            )
            pq.write_table(table, folder / f"part-{number:04}.parquet", row_group_size=rows)

    return _made(f"sources-{files}-{rows}", write)


def tables(files: int, groups: int, rows: int) -> Path:
    """Rows of numbers that do not compress, 64 bytes each, in Parquet files; ``bucket`` is the row group's number."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(7)
        for number in range(files):
            first, count = number * groups * rows, groups * rows
            columns: dict[str, npt.NDArray[np.generic]] = {
                "id": np.arange(first, first + count),
                "bucket": np.repeat(np.arange(groups, dtype=np.int64), rows),
                **{f"x{place}": rng.random(count) for place in range(6)},
            }
            path = folder / f"part-{number:04}.parquet"
            pq.write_table(pa.table(columns), path, row_group_size=rows, use_dictionary=False, compression="none")

    return _made(f"tables-{files}-{groups}-{rows}", write)


def _jpeg(rng: np.random.Generator) -> bytes:
    from PIL import Image

    coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    written = io.BytesIO()
    coarse.resize((500, 375), Image.Resampling.BICUBIC).save(written, "JPEG", quality=90)
    return written.getvalue()


def _made(name: str, write: Callable[[Path], None]) -> Path:
    """The folder of that name. It is written first if it does not exist, and never left half written."""
    folder, unfinished = FOLDER / name, FOLDER / f"{name}.unfinished"
    if not folder.exists():
        print(f"making {folder} ...", flush=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished)
        unfinished.rename(folder)
    return folder


def _write_stream(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    first = next(batches)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def words(letters: int = 16 << 20) -> str:
    """Much text of random words."""
    return _pool(letters)


def tokeniser() -> Any:
    """A small BPE tokeniser, trained on the spot."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.trainers import BpeTrainer

    text = words(1 << 20)
    made = Tokenizer(BPE(unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    trainer = BpeTrainer(vocab_size=8000, special_tokens=["[UNK]"], show_progress=False)
    made.train_from_iterator([text[at : at + 5000] for at in range(0, 500_000, 5000)], trainer)
    return made


def _pool(letters: int = 16 << 20) -> str:
    """Much text of random words, from which rows are cut."""
    rng = np.random.default_rng(0)
    alphabet = np.frombuffer(b"etaoinshrdlucmfwypvbgkqjxz", np.uint8)
    weights = 1 / np.arange(1, len(alphabet) + 1)
    text = rng.choice(alphabet, letters, p=weights / weights.sum()).astype(np.uint8)
    text[np.cumsum(rng.integers(2, 12, letters // 8)) % letters] = ord(" ")
    return text.tobytes().decode("ascii")


def _texts(rng: np.random.Generator, pool: str, first: int, rows: int) -> pa.RecordBatch:
    lengths = np.clip(rng.lognormal(np.log(MEDIAN_LETTERS), SPREAD, rows), 1, len(pool) // 2).astype(np.int64)
    starts = rng.integers(0, len(pool) - lengths)
    numbers = np.arange(first, first + rows)
    return pa.RecordBatch.from_pydict(
        {
            "id": [f"doc-{number:09}" for number in numbers.tolist()],
            "text": [pool[at : at + n] for at, n in zip(starts.tolist(), lengths.tolist(), strict=True)],
            "number": numbers,
            "score": rng.random(rows),
        }
    )


def _tokens(rng: np.random.Generator) -> pa.RecordBatch:
    values = pa.array(rng.integers(0, 50_000, BATCH_ROWS * TOKENS, dtype=np.int32))
    return pa.RecordBatch.from_pydict({"tokens": pa.FixedSizeListArray.from_arrays(values, TOKENS)})


def _documents(rng: np.random.Generator, lengths: npt.NDArray[np.int64]) -> pa.RecordBatch:
    values = pa.array(rng.integers(0, 50_000, int(lengths.sum()), dtype=np.uint16))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.RecordBatch.from_pydict({"input_ids": pa.ListArray.from_arrays(offsets, values)})


def _numbers(rng: np.random.Generator) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": np.arange(BATCH_ROWS), "value": rng.random(BATCH_ROWS, np.float32)})
