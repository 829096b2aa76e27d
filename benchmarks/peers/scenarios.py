"""The scenarios: what is measured of whom, on which data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.peers.view import BUDGET, PACK, ROWS_OF_A_BUDGET

BATCH = 64
PER_CORE = "(per core)"
AHEAD = 1200  # rows for each worker: Grain reads 1,024 ahead, LanceDB 512, each with batches on top


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much data and time a run takes.

    ``workers`` are the counts for texts, ``few`` those for other data, ``started`` those with which a process starts,
    and ``resumed_with`` those after a resume. ``apart`` gives the memory of a process that has measured nothing before.
    """

    texts: int
    tokens: int
    documents: int
    images: int
    samples: int
    small: int
    resumed: int
    numbers: tuple[int, ...]
    workers: tuple[int, ...]
    few: tuple[int, ...]
    started: tuple[int, ...]
    resumed_with: tuple[int, ...]
    places: tuple[float, ...]
    epochs: int
    seconds: float
    rounds: int
    apart: bool


WHOLE = Sizes(
    texts=400_000,
    tokens=64_000,
    documents=40_000,
    images=4_000,
    samples=20_000,
    small=20_000,
    resumed=100_000,
    numbers=(10**5, 10**6, 10**7, 10**8, 10**9),
    workers=(0, 2, 4),
    few=(0, 2),
    started=(0, 2),
    resumed_with=(2, 4),
    places=(0.01, 0.5, 0.99),
    epochs=10,
    seconds=2.0,
    rounds=3,
    apart=True,
)
QUICK = Sizes(
    texts=1_000,
    tokens=1_000,
    documents=100,
    images=96,
    samples=960,
    small=1_000,
    resumed=1_000,
    numbers=(10**4,),
    workers=(0, 2),
    few=(1,),
    started=(0,),
    resumed_with=(1,),
    places=(0.5,),
    epochs=2,
    seconds=0.005,
    rounds=1,
    apart=False,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One or several columns of a table. ``fresh`` means that every round has a new process."""

    label: str
    measure: str
    rows: int
    view: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=lambda: {"value": ""})
    fresh: bool = False
    once: bool = False

    def columns(self) -> dict[str, str]:
        """The name of each figure, and the head of its column."""
        return {name: f"{self.label} {head}".strip() for name, head in self.figures.items()}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A table: its title, its unit, whether more is better, and what has to be known about it."""

    key: str
    title: str
    unit: str
    more: bool
    note: str
    cases: tuple[Case, ...]


def source(kind: str, rows: int) -> Path:
    """The Arrow or Parquet files of a kind of data, written on demand."""
    makers: dict[str, Callable[[int], Path]] = {
        "texts": data.texts,
        "parquet": data.zstd_texts,
        "tokens": data.tokens,
        "documents": data.documents,
        "images": data.jpegs,
        "tars": data.tars,
        "numbers": lambda rows: data.many(*_files(rows)),
    }
    return makers[kind](rows)


def _files(rows: int) -> tuple[int, int]:
    each = min(max(rows // 10, 1000), 1_000_000)
    return rows // each, each


def scenarios(sizes: Sizes) -> tuple[Scenario, ...]:
    """All of them, in the order of the report."""

    def speed(label: str, kind: str, rows: int, per_row: int = 1, tokens: bool = False, **view: Any) -> Case:
        workers = view.get("workers", 0)
        ahead = min(AHEAD * max(2, workers), rows // 3) if workers else 0
        options = {"ahead": ahead, "seconds": sizes.seconds, "per_row": per_row, "tokens": tokens}
        return Case(
            label=label,
            measure="speed",
            rows=rows,
            view={"kind": kind, **view},
            options=options,
            figures={"value": "", "worked": PER_CORE},
        )

    def resume(label: str, kind: str, rows: int, at: float, **view: Any) -> Case:
        return Case(
            label=label, measure="resume", rows=rows, view={"kind": kind, **view}, options={"rows": rows, "at": at}
        )

    shuffled = {"kind": "texts", "shuffle": "block"}
    middle = sizes.small // BATCH // 8 * 4  # whole rounds of four workers, which some need for a state
    return (
        Scenario(
            key="01-text-rows",
            title="Text rows, one process",
            unit="rows/s",
            more=True,
            note="Rows as dicts with Python strings, in order, without a loader.",
            cases=(speed("rows", "texts", sizes.texts, batch_size=None),),
        ),
        Scenario(
            key="02-text-batches",
            title="Text batches of 64",
            unit="rows/s",
            more=True,
            note="Dicts of lists, in order.",
            cases=tuple(speed(f"{n} workers", "texts", sizes.texts, workers=n) for n in sizes.workers),
        ),
        Scenario(
            key="03-tokens",
            title="Token rows to torch",
            unit="million tokens/s",
            more=True,
            note="Tensors of 64 × 2,048 int32.",
            cases=tuple(speed(f"{n} workers", "tokens", sizes.tokens, data.TOKENS, workers=n) for n in sizes.few),
        ),
        Scenario(
            key="04-shuffle",
            title="Shuffled text batches of 64",
            unit="rows/s",
            more=True,
            note='"Block" is the shuffle that a library recommends for streams: of shards or chunks, and of rows in '
            'windows, chunks or a buffer of 1,000. "Row" is a uniform shuffle of all rows.',
            cases=tuple(
                speed(f"{level}, {n} workers", "texts", sizes.texts, shuffle=level, workers=n)
                for level, n in (("block", 0), ("block", 2), ("row", 0))
            ),
        ),
        Scenario(
            key="05-parquet",
            title="Parquet in place",
            unit="rows/s",
            more=True,
            note="The same texts in Parquet, zstd, row groups of 2,000; batches of 64 as Python values.",
            cases=tuple(speed(f"{n} workers", "parquet", sizes.texts // 2, workers=n) for n in sizes.few),
        ),
        Scenario(
            key="06-tokenise",
            title="A tokeniser in two workers",
            unit="rows/s",
            more=True,
            note="The same `tokenizers` BPE for all, one thread in each worker.",
            cases=(speed("2 workers", "texts", sizes.small, workers=2, work="tokenise"),),
        ),
        Scenario(
            key="07-packing",
            title="Packing to 2,048 tokens",
            unit="million tokens/s",
            more=True,
            note='Documents of lognormal length into batches of 16 packs as tensors. "Concat" cuts one stream; "whole" '
            "keeps documents whole. Padding counts as tokens.",
            cases=tuple(
                speed(label, "documents", sizes.documents, PACK, work=work, batch_size=16)
                for label, work in (("concat", "concat"), ("whole documents", "whole"))
            ),
        ),
        Scenario(
            key="08-start",
            title="Start of the process to the first batch",
            unit="ms",
            more=False,
            note="Python and all imports included; block shuffle; the files are in the page cache.",
            cases=tuple(
                Case(
                    label=f"{n} workers",
                    measure="start",
                    rows=sizes.texts,
                    view={**shuffled, "workers": n},
                    fresh=True,
                )
                for n in sizes.started
            ),
        ),
        Scenario(
            key="09-resume",
            title="First batch after a resume",
            unit="ms",
            more=False,
            note="From opening the data to the first batch, in a process that has imported everything. Block shuffle, "
            "2 workers.",
            cases=tuple(
                resume(f"at {round(100 * at)} %", at=at, rows=sizes.resumed, workers=2, **shuffled)
                for at in sizes.places
            ),
        ),
        Scenario(
            key="09-resume-scale",
            title="First batch after a resume in the middle of many rows",
            unit="ms",
            more=False,
            note="Rows of two numbers, block shuffle, no workers. States beyond a million rows are computed, not "
            "reached by reading.",
            cases=tuple(
                resume(f"{rows:,} rows", "numbers", rows=rows, at=0.5, shuffle="block") for rows in sizes.numbers
            ),
        ),
        Scenario(
            key="10-state",
            title="The state",
            unit="bytes, µs",
            more=False,
            note="In the middle of an epoch, block shuffle, 2 workers; as JSON where that is possible, or pickled.",
            cases=(
                Case(
                    label="state",
                    measure="state",
                    rows=sizes.small,
                    view={**shuffled, "workers": 2},
                    options={"batches": middle},
                    figures={"bytes": "bytes", "time": "µs"},
                ),
            ),
        ),
        Scenario(
            key="11-exact",
            title="Rows lost and repeated by a resume",
            unit="rows",
            more=False,
            note=f"Block shuffle, {sizes.small:,} rows, stopped in the middle with 2 workers and resumed; compared "
            "with an uninterrupted pass.",
            cases=tuple(
                Case(
                    label=f"2 → {after} workers:",
                    measure="exact",
                    rows=sizes.small,
                    view={**shuffled, "workers": 2},
                    options={"batches": middle, "workers_after": after},
                    figures={"lost": "lost", "repeated": "repeated"},
                    once=True,
                )
                for after in sizes.resumed_with
            ),
        ),
        Scenario(
            key="12-memory",
            title="Memory",
            unit="MB",
            more=False,
            note="Of the process and its 2 workers, without pages of mapped files: the peak of the first epoch, "
            "and how much higher the peak of the last is than that of the second. Block shuffle.",
            cases=(
                Case(
                    label="",
                    measure="memory",
                    rows=sizes.small,
                    view={**shuffled, "workers": 2},
                    options={"epochs": sizes.epochs},
                    figures={"peak": "peak", "growth": f"growth, epoch 2 to {sizes.epochs}"},
                    fresh=sizes.apart,
                    once=True,
                ),
            ),
        ),
        Scenario(
            key="13-images",
            title="JPEG to tensors of 224 × 224",
            unit="images/s",
            more=True,
            note="Batches of 16, decoded and resized by the same Pillow function.",
            cases=tuple(
                speed(f"{n} workers", "images", sizes.images, work="decode", batch_size=16, workers=n)
                for n in sizes.few
            ),
        ),
        Scenario(
            key="14-tar",
            title="Tar files of samples",
            unit="samples/s",
            more=True,
            note="A JPEG and a class, as bytes; block shuffle, batches of 64.",
            cases=tuple(speed(f"{n} workers", "tars", sizes.samples, shuffle="block", workers=n) for n in sizes.few),
        ),
        Scenario(
            key="15-padded",
            title="Padded batches of whole documents",
            unit="million tokens/s",
            more=True,
            note="Documents of lognormal length, grouped by length, as tensors with an attention mask: "
            f"{BUDGET:,} tokens a batch where there is a budget, {ROWS_OF_A_BUDGET} rows elsewhere. Padding does not "
            "count.",
            cases=(speed("", "documents", sizes.documents, tokens=True, work="padded", shuffle="row"),),
        ),
        Scenario(
            key="16-padding",
            title="Padding in these batches",
            unit="%",
            more=False,
            note="The share of all places of an epoch.",
            cases=(
                Case(
                    label="padding",
                    measure="padding",
                    rows=sizes.documents,
                    view={"kind": "documents", "work": "padded", "shuffle": "row"},
                    once=True,
                ),
            ),
        ),
    )
