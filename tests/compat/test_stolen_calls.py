"""How often functions of the user are called if workers make each other's batches: no more than the batches need."""

import multiprocessing
import time
from collections import Counter
from itertools import chain

import pytest
from torch.utils.data import get_worker_info

import midepoch as me
from files import plain
from midepoch.workers import taking
from midepoch.workers.claims import SharedTurns
from worlds import write_files

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
ROWS, PARTS, SIZE, BATCH, LENGTH = 480, 3, 6, 4, 16
PATIENCE_SECONDS = 60
shared = multiprocessing.get_context("fork")
TIMES_MADE, CALLS = shared.Array("i", ROWS), shared.Value("i", 0)
CLAIMS, STOLEN, MOST_GROUPS = (shared.Value("i", 0) for _ in range(3))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calls")
    data = write_files(folder / "data", [200, 0, 30, 250], ["stream", "file"], block=50)
    return me.read(data, index_dir=folder / "index")


@pytest.fixture(autouse=True)
def counted_claims(monkeypatch):
    """Workers claim few groups at a time, and steal whenever they are ahead, however long turns take."""
    claim = SharedTurns.claim

    def counted(self, count, *, steal):
        claimed = claim(self, count * (1 + CLAIMS.value % MOST_GROUPS.value), steal=steal)
        if claimed is not None:
            with CLAIMS.get_lock():
                CLAIMS.value += 1
                STOLEN.value += claimed.start % self._table.workers != self._worker
        return claimed

    monkeypatch.setattr(SharedTurns, "claim", counted)
    monkeypatch.setattr(taking.TurnTaker, "_may_steal", lambda self: True)
    monkeypatch.setattr(taking, "CLAIM_SECONDS", 0)
    monkeypatch.setattr(taking, "GROUPS_SECONDS", 0)


def note(rows):
    """Count a call for these rows. The first worker waits until another has stolen something of its turns."""
    info = get_worker_info()
    if info is None:
        return
    with CALLS.get_lock():
        CALLS.value += 1
        for row in rows:
            TIMES_MADE[row] += 1
    deadline = time.monotonic() + PATIENCE_SECONDS
    while info.id == 0 and not STOLEN.value and time.monotonic() < deadline:
        time.sleep(0.001)


def tokens_of(row):
    """So many tokens that most packs have several documents, and each token names its row."""
    return [int(row)] * (3 + row * 7 % 11)


def one(row):
    note([row["id"]])
    return {"tokens": tokens_of(row["id"])}


def many(rows):
    note(rows["id"])
    return {"tokens": [tokens_of(row) for row in rows["id"]]}


def one_with_rng(row, rng):
    return {**one(row), "noise": int(rng.integers(1 << 30))}


def is_any(row):
    return True


def mapped(rows):
    return rows.map(one)


def batched(rows, size=SIZE):
    return rows.map(many, batched=True, batch_size=size, one_to_one=True)


def parts(rows):
    """Three datasets of unequal size, which have all rows between them."""
    return [part.shuffle(1) for part in (rows.take(200), rows.skip(200).take(180), rows.skip(380))]


def mixed(datasets, stop="all"):
    datasets = list(datasets)
    return me.mix(datasets, [5, 3, 2][: len(datasets)], stop=stop, seed=1)


MIXTURES = {
    "mapped": lambda rows: mixed(map(mapped, parts(rows))),
    "mapped, until the first ends": lambda rows: mixed(map(mapped, parts(rows)), "first"),
    "mapped with rng": lambda rows: mixed([part.map(one_with_rng, with_rng=True) for part in parts(rows)]),
    "mapped after it": lambda rows: mapped(mixed(parts(rows))),
    "mapped, of kept rows": lambda rows: mixed([mapped(part.filter(is_any)).survey() for part in parts(rows)]),
    "a mixture in it": lambda rows: mixed([mixed(map(mapped, parts(rows)[:2])), mapped(parts(rows)[2])]),
    "one after the other": lambda rows: me.concat(list(map(mapped, parts(rows)))),
    "one part is batched": lambda rows: mixed([batched(parts(rows)[0]), *map(mapped, parts(rows)[1:])]),
    "batched": lambda rows: mixed(map(batched, parts(rows))),
    "batched, until the first ends": lambda rows: mixed(map(batched, parts(rows)), "first"),
    "batched in sizes": lambda rows: mixed(map(batched, parts(rows), (2, 5, 12))),
    "batched after it": lambda rows: batched(mixed(parts(rows))),
    "batched, of kept rows": lambda rows: mixed([batched(part.filter(is_any)).survey() for part in parts(rows)]),
    "a batched mixture in it": lambda rows: mixed([mixed(map(batched, parts(rows)[:2])), batched(parts(rows)[2])]),
    "batched, one after the other": lambda rows: me.concat(list(map(batched, parts(rows)))),
}


def packed(rows, strategy):
    options = {} if strategy == "concat" else {"window": 40}
    return rows.pack(LENGTH, column="tokens", strategy=strategy, **options).survey()


PACKS = {
    "mapped": lambda rows, strategy: packed(mapped(rows.shuffle(1)), strategy),
    "batched": lambda rows, strategy: packed(batched(rows.shuffle(1)), strategy),
    "of a mixture": lambda rows, strategy: packed(mixed(map(mapped, parts(rows))), strategy),
    "of a batched mixture": lambda rows, strategy: packed(mixed(map(batched, parts(rows))), strategy),
    "mixed": lambda rows, strategy: mixed([packed(mapped(part), strategy) for part in parts(rows)]),
    "batched and mixed": lambda rows, strategy: mixed([packed(batched(part), strategy) for part in parts(rows)]),
}


def run(dataset, workers, *, steal, groups=1):
    """The batches. How often each row was processed for them, and how often functions were called, is counted.

    Workers claim at most so many ``groups`` at a time.
    """
    CALLS.value, CLAIMS.value, MOST_GROUPS.value = 0, 0, groups
    STOLEN.value = not steal  # then nobody waits
    TIMES_MADE[:] = [0] * ROWS
    return list(map(rows_of, me.Loader(dataset, batch_size=BATCH, num_workers=workers, work_stealing=steal)))


def rows_of(batch):
    """The rows of a batch, in their order."""
    return list(dict.fromkeys(chain.from_iterable(plain(batch["tokens"]))))


def batches_with(batches):
    """In how many batches each row is."""
    counts = Counter(chain.from_iterable(batches))
    return [counts[row] for row in range(ROWS)]


@pytest.mark.parametrize(("workers", "lanes"), [(3, 1), (2, 3)])
@pytest.mark.parametrize("kind", MIXTURES)
def test_a_row_of_a_mixture_is_processed_once(rows, kind, workers, lanes):
    dataset = MIXTURES[kind](rows).lanes(lanes)
    expected = run(dataset, workers, steal=False)
    calls = CALLS.value
    assert run(dataset, workers, steal=True) == expected
    assert STOLEN.value
    assert TIMES_MADE[:] == batches_with(expected)
    if "batched" in kind:  # a claim has as many rows as one call for each part, and may cut each part's last call short
        assert CALLS.value <= 2 * calls + PARTS * lanes * workers
    else:
        assert CALLS.value == calls == sum(TIMES_MADE)


@pytest.mark.parametrize(
    ("strategy", "workers", "lanes"),
    [
        ("best_fit", 3, 1),
        ("best_fit", 2, 3),
        ("first_fit", 2, 3),
        ("balanced", 3, 1),
        ("concat", 3, 1),
        ("concat", 2, 3),
    ],
)
@pytest.mark.parametrize("kind", PACKS)
def test_a_document_is_processed_once_for_each_batch_that_has_a_piece_of_it(rows, strategy, kind, workers, lanes):
    dataset = PACKS[kind](rows, strategy).lanes(lanes)
    expected = run(dataset, workers, steal=False)
    calls = CALLS.value
    assert run(dataset, workers, steal=True, groups=3) == expected
    assert STOLEN.value
    needed = batches_with(expected)
    if strategy == "concat":
        assert all(1 <= made <= most <= 2 for made, most in zip(TIMES_MADE, needed, strict=True))
    else:
        assert TIMES_MADE[:] == needed == [1] * ROWS
    if "batched" in kind:  # a claim may cut a call short in each part of each lane
        assert CALLS.value <= calls + CLAIMS.value * lanes * (PARTS if "mix" in kind else 1)
    else:
        assert CALLS.value == sum(TIMES_MADE)
