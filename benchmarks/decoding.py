"""Parquet against pyarrow's scanner and Lance on all cores, JPEG, video: ``python -m benchmarks.decoding [--quick]``.

Lance is measured where ``pylance`` is installed. It reads the same rows from files of its own.
"""

import argparse
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pd
import pyarrow.parquet as pq

import midepoch as me
from benchmarks.measure import Figure, at_least, best_apart, exhaust, figure, fresh, in_turn, processor_seconds, show
from midepoch._common.world import usable_cores

GROUP, BATCH, FILES = 2_000, 2_000, 4
WORDS = np.array([f"word{number}" for number in range(5_000)])


def write(folder: Path, rows: int) -> None:
    """Files of texts of about 1 KB, compressed with zstd, in small row groups."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        ids = range(number * rows // FILES, (number + 1) * rows // FILES)
        texts = [" ".join(WORDS[rng.integers(0, len(WORDS), 100)]) for _ in ids]
        table = pa.table({"id": ids, "text": texts})
        pq.write_table(table, folder / f"part-{number}.parquet", compression="zstd", row_group_size=GROUP)


def link(folder: Path, times: int) -> None:
    """Let the files be there several times, as hard links, so that a pass on many cores takes longer than a moment."""
    for path in list(folder.glob("*.parquet")):
        for copy in range(1, times):
            os.link(path, folder / f"{path.stem}-{copy}.parquet")


WRITE_LANCE = """
import sys, lance, pyarrow as pa, pyarrow.dataset
rows = pyarrow.dataset.dataset(sys.argv[1].split(",")).to_table()
zstd = {"lance-encoding:compression": "zstd"} if sys.argv[3] == "zstd" else None
lance.write_dataset(rows.cast(pa.schema([field.with_metadata(zstd) for field in rows.schema])), sys.argv[2])
"""


def lance_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a Lance dataset. Its threads do not survive a fork, so it is imported in the process that reads."""
    import lance

    return iter(lance.dataset(str(path)).to_batches(batch_size=BATCH))


def lance_passes(paths: list[str], folder: Path) -> dict[str, Callable[[], None]]:
    """Passes over the same rows in Lance, as it encodes them by itself and with zstd."""
    passes: dict[str, Callable[[], None]] = {}
    for name, compression in (("Lance", "default"), ("Lance with zstd", "zstd")) if find_spec("lance") else ():
        copy = folder / f"{compression}.lance"
        fresh(WRITE_LANCE, ",".join(paths), copy, compression)
        passes[f"{name}, batches"] = lambda copy=copy: exhaust(lance_batches(copy))  # type: ignore[misc]
        passes[f"{name}, rows"] = lambda copy=copy: exhaust(  # type: ignore[misc]
            row for batch in lance_batches(copy) for row in batch.to_pylist()
        )
    return passes


def scanning(folder: Path, rows: int, repeats: int) -> Iterator[Figure]:
    """A pass of Arrow batches in order, and of rows."""
    paths = [str(path) for path in sorted(folder.glob("*.parquet"))]
    dataset, scanner = me.read(folder, index_dir=folder / "index"), pd.dataset(paths)
    trusted = me.read(folder, index_dir=folder / "index", max_record_bytes=None)
    lance = lance_passes(paths, folder)
    times = best_apart(
        {
            "scanner": lambda: exhaust(scanner.to_batches(batch_size=BATCH)),
            "scanner, one thread": lambda: exhaust(scanner.to_batches(batch_size=BATCH, use_threads=False)),
            "Arrow batches": lambda: exhaust(dataset.with_format("arrow").batch(BATCH)),
            "trusted, Arrow batches": lambda: exhaust(trusted.with_format("arrow").batch(BATCH)),
            "shuffle (block), Arrow batches": lambda: exhaust(dataset.shuffle(1).with_format("arrow").batch(BATCH)),
            "rows": lambda: exhaust(dataset),
            **lance,
        },
        repeats,
    )
    yield at_least(0.9, "Arrow batches in order / scanner", times["scanner"] / times["Arrow batches"], "×")
    yield figure("the same, max_record_bytes=None / scanner", times["scanner"] / times["trusted, Arrow batches"], "×")
    for name in lance:
        own = times["Arrow batches" if name.endswith("batches") else "rows"]
        yield at_least(1.5, f"the same rows / {name}", times[name] / own, "×")
    if not lance:
        yield figure("Lance is not installed: pip install pylance", float("nan"))
    for name, taken in times.items():
        yield figure(f"{name}: rows/s", rows / taken)


def photos(width: int, number: int) -> list[bytes]:
    """JPEG files with some detail, as wide as given."""
    import PIL.Image

    rng, files = np.random.default_rng(0), []
    for _ in range(number):
        noise = PIL.Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8))
        file = io.BytesIO()
        noise.resize((width, width * 3 // 4), PIL.Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def images(folder: Path, width: int, number: int, repeats: int) -> Iterator[Figure]:
    """The decoders of ``Dataset.decode``: whole pictures, and in 224 × 224 pixels. In processor time."""
    path = folder / f"photos-{width}.parquet"
    pq.write_table(pa.table({"jpeg": photos(width, number)}), path)
    dataset = me.read(path, index_dir=folder / "index")

    def pixels(**options: Any) -> list[Any]:
        return [np.asarray(row["jpeg"]) for row in dataset.decode("jpeg", **options)]

    for size in (None, 224):
        ways = {name: partial(pixels, decoder=name, size=size) for name in ("pillow", "turbo")}
        times = in_turn({name: partial(processor_seconds, way) for name, way in ways.items()}, repeats)
        best = {name: min(taken) for name, taken in times.items()}
        apart = np.abs(ways["pillow"]()[0].astype(int) - ways["turbo"]()[0])
        what = f"from {width} × {width * 3 // 4}, " + ("whole" if size is None else f"to {size} × {size}")
        yield from (figure(f"{what}: {name}", number / taken, "images/s") for name, taken in best.items())
        yield figure(f"{what}: turbo / pillow", best["pillow"] / best["turbo"], "×")
        yield figure(f"{what}: most difference of a pixel", apart.max(), "of 255")


def record(path: Path, seconds: int) -> None:
    """A video of 30 frames a second, 640 by 480, with a key frame every ten seconds at least."""
    import av

    noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"g": "300", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 640, 480, "yuv420p"
        for number in range(30 * seconds):
            picture = np.roll(noise, 4 * number, axis=1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def seeking(folder: Path, seconds: int, repeats: int) -> Iterator[Figure]:
    """One frame at the end of a video, against decoding it from the start."""
    import av

    from midepoch.values import video

    path, last = folder / "video.mp4", seconds - 1 / 30
    record(path, seconds)

    def sought() -> None:
        with path.open("rb") as file:
            video.frames_of(file, times=[last])

    def from_the_start() -> None:
        with av.open(str(path)) as container:
            frames = container.decode(video=0)
            next(frame for frame in frames if frame.time >= last - 1e-3).to_ndarray(format="rgb24")

    best = best_apart({"sought": sought, "from the start": from_the_start}, repeats)
    yield figure("the last frame, by decode(video=...)", 1e3 * best["sought"], "ms")
    yield at_least(10, "decoding from the start / decode(video=...)", best["from the start"] / best["sought"], "×")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, to see that everything runs")
    is_quick = parser.parse_args().quick
    rows, pictures, repeats, seconds = (20_000, 5, 2, 20) if is_quick else (400_000, 40, 5, 600)
    times = max(1, usable_cores() // 2)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), rows)
        link(Path(folder), times)
        show(f"Parquet with zstd, row groups of {GROUP:,}", scanning(Path(folder), times * rows, repeats))
        for width in (256, 480, 1600) if find_spec("PIL") and find_spec("simplejpeg") else ():
            show(f"JPEG {width} pixels wide, a second of one core", images(Path(folder), width, pictures, repeats))
        if find_spec("av"):
            show(f"A video of {seconds} seconds, 640 x 480", seeking(Path(folder), seconds, min(3, repeats)))


if __name__ == "__main__":
    main()
