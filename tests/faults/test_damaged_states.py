"""Damaged states are refused at once, or resume to rows of the epoch: they never fail otherwise, hang, or take memory.

The mutants come from states of every kind of pipeline: golden ones, and fresh ones with a checksum that is kept,
dropped or computed again. The environment variable MIDEPOCH_MUTANTS sets how many are tried.
"""

import contextlib
import copy
import json
import os
import random
import resource
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

import midepoch as me
from golden.write import PIPELINES
from midepoch.checkpoint.state import signed
from midepoch.integrations.structured import StructuredDataset
from midepoch.integrations.torchdata import from_stateful_dataloader
from worlds import is_kept, write_files

MUTANTS = int(os.environ.get("MIDEPOCH_MUTANTS", "500"))
GROUPS = 4
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.json"))
HANG_SECONDS = 60
"""Of processor time, for one mutant."""
MEMORY = 300 << 20
ADDED = ["grown", "part", "items", "done", "extra", "parts", "earlier", "later"]
ONE_EPOCH = {"mode": "example", "item_rows": 1}
NUMBERS = [-1, 0, 1, 2, 3, 5, 7, 60, 1 << 14, 1 << 20, 1 << 31, 1 << 40, 1 << 53, 1 << 61, 1 << 62, 1 << 64, 10**5000]
OTHERS = [
    None,
    True,
    False,
    1.5,
    float("nan"),
    1e300,
    "",
    "x",
    "file",
    [],
    {},
    [[]],
    [0],
    [1, 2],
    {"at": 0, "done": [0]},
]


@dataclass
class Kind:
    """A saved state, how it is loaded, and how often each row may be delivered from there on."""

    saved: Any
    load: Any
    rows: Counter | None

    def deliver(self, mutant):
        items = Counter()
        for item in islice(self.load(mutant), 500):
            items.update(numbers(item))
        return items


def numbers(item):
    """The rows of an item: its ids, or the tokens of a pack, which are the numbers of their rows."""
    values = item["id"] if "id" in item else item["tokens"]
    return [values] if isinstance(values, int) else list(map(int, values))


def loaded(build):
    def load(mutant):
        dataset = build()
        dataset.load_state_dict(mutant)
        return dataset

    return load


def after(dataset, items):
    iterator = iter(dataset)
    list(islice(iterator, items))
    return dataset.state_dict()


def kind(build, items=7):
    whole = Counter()
    for item in build():
        whole.update(numbers(item))
    return Kind(after(build(), items), loaded(build), whole)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    index = {"index_dir": folder / "index"}
    rows = me.read(write_files(folder / "data", [20, 0, 7, 33], kinds=["stream"]), **index)
    made = {path.stem: golden(path, rows) for path in GOLDEN}
    made |= {
        "uniform": kind(lambda: rows.shuffle(1, window=12).lanes(3).batch(4)),
        "by file": kind(lambda: rows.shuffle(1).lanes(3).shard(1, 0, mode="file")),
        "row": kind(lambda: rows.shuffle(5, level="row").lanes(2)),
        "filter": kind(lambda: rows.shuffle(1, window=12).lanes(3).filter(is_kept)),
        "pack": kind(lambda: rows.shuffle(2, window=12).lanes(2).pack(9, column="tokens", window=8)),
        "stream": kind(lambda: rows.lanes(2).pack(5, column="tokens", strategy="concat")),
        "rank of a filter": kind(lambda: rows.lanes(4).filter(is_kept).shard(2, 1)),
    }
    made["rank of a filter"].rows = made["filter"].rows
    odd, even = rows.filter(is_odd), rows.filter(is_even)
    for stop in ("first", "all"):
        made[f"mix until {stop}"] = kind(lambda stop=stop: me.mix({"a": odd, "b": even}, [2, 1], stop=stop).lanes(2))
        made[f"mix until {stop}"].rows = made["row"].rows
    ranks = [after(rows.lanes(3).filter(is_kept).shard(2, rank), 4 + rank) for rank in range(2)]

    def merged(mutant):
        return loaded(lambda: rows.filter(is_kept).lanes(3))(me.merge_states([mutant, ranks[1]]))

    made["merged"] = Kind(ranks[0], merged, made["filter"].rows)
    shared = me.merge_states([after(rows.lanes(1).filter(is_kept).shard(2, rank), 4 + rank) for rank in range(2)])
    made["ahead"] = Kind(shared, loaded(lambda: rows.lanes(1).filter(is_kept)), made["filter"].rows)
    made |= epochs_apart(rows, made["filter"].rows)
    made["workers"] = workers(rows)
    made["workers"].rows = made["row"].rows
    made["appended"] = appended(folder / "more", index)
    return made


def epochs_apart(rows, epoch):
    """Two ranks in different epochs: the state of the one that is ahead, how it merges, and the merged state."""

    def build(*shard):
        dataset = rows.lanes(3).filter(is_kept)
        return dataset.shard(*shard) if shard else dataset

    behind, ahead = after(build(2, 0), 4), build(2, 1)
    list(ahead)
    ahead = after(ahead, 3)
    assert ahead["earlier"]

    def merged(mutant):
        return loaded(build)(me.merge_states([behind, mutant]))

    return {
        "rank ahead": Kind(ahead, loaded(lambda: build(2, 1)), epoch),
        "merged ahead": Kind(ahead, merged, epoch),
        "later": Kind(me.merge_states([behind, ahead]), two_epochs(build), epoch + epoch),
    }


def two_epochs(build):
    def load(mutant):
        dataset = loaded(build)(mutant)
        return chain(dataset, dataset)

    return load


def is_odd(row):
    return row["id"] % 2 == 1


def is_even(row):
    return row["id"] % 2 == 0


def golden(path, rows):
    values = json.loads(path.read_text())
    packs = values["pipeline"] in ("pack", "stream")  # their numbers are sums, not rows
    parts = {"mix": 2, "nested": 3}.get(values["pipeline"], 1)
    limit = None if packs else Counter(list(range(60)) * parts)
    return Kind(values["state"], loaded(lambda: PIPELINES[values["pipeline"]](rows)), limit)


def workers(rows):
    """A StatefulDataLoader's checkpoint: two workers of a uniform pipeline, and a step since its snapshot."""
    start = after(rows.lanes(2), 0)
    snapshots = {}
    for number, items in enumerate((4, 3)):
        part = {"readers": 2, "workers": 2, "items": items}
        state = signed({**start, "lanes": 2, "cursors": [[2, 0]], "part": part})
        snapshots[f"worker_{number}"] = {"dataset_state": state}
    checkpoint = {"_snapshot": {"_worker_snapshots": snapshots, "_last_yielded_worker_id": 0}}
    checkpoint["_steps_since_snapshot"] = 1

    def load(mutant):
        return loaded(lambda: rows.lanes(2))(from_stateful_dataloader(mutant, batch_size=1))

    return Kind(checkpoint, load, None)


def appended(folder, index):
    """A structured dataset's state after files were added twice."""
    write_files(folder, [20, 5], ["parquet"])
    state = after(StructuredDataset(folder, shuffle=True, **index), 6)
    for sizes in ([20, 5, 9], [20, 5, 9, 4]):
        write_files(folder, sizes, ["parquet"])
        dataset = StructuredDataset(folder, shuffle=True, **index)
        dataset.load_state_dict(state, new_files="append")
        state = after(dataset, 3)

    def load(mutant):
        resumed = copy.copy(dataset)
        resumed.load_state_dict(mutant, new_files="append")
        return resumed

    assert state["grown"]
    return Kind(state, load, Counter(range(38)))


def places(value, path=()):
    """The paths of all values inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*path, key)
        yield from places(one, (*path, key))


def mutate(value, rng):
    """The value with one place changed. Most changes are outside the fingerprint, which has most places."""
    value = copy.deepcopy(value)
    paths = list(places(value))
    few = [path for path in paths if "fingerprint" not in path]
    *way, key = rng.choice(few if few and rng.random() < 0.8 else paths)
    parent = value
    for step in way:
        parent = parent[step]
    old = parent[key]
    change = rng.choice(["drop", "number", "number", "near", "near", "other", "twice", "cut", "deep", "add"])
    if change == "drop":
        del parent[key]
    elif change == "near" and type(old) is int:
        parent[key] = old + rng.choice([-1, 1, -2, 2, -old])
    elif change == "other":
        parent[key] = copy.deepcopy(rng.choice(OTHERS))
    elif change == "twice" and isinstance(old, list) and old:
        parent[key] = old + old[-1:]
    elif change == "twice" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(old))
    elif change == "cut" and isinstance(old, list):
        parent[key] = old[: rng.randrange(len(old) + 1)]
    elif change == "deep":
        parent[key] = nested(rng.choice([20, 200, 5000]), rng.random() < 0.5)
    elif change == "add" and isinstance(parent, dict):
        parent[rng.choice(ADDED)] = copy.deepcopy(rng.choice(OTHERS))
    else:
        parent[key] = rng.choice(NUMBERS)
    return value


def nested(levels, lists):
    value = 0
    for _ in range(levels):
        value = [value] if lists else {"at": value}
    return value


def flip(value, rng):
    """The value with a bit of its JSON text changed, or the text cut; None if that is no JSON."""
    text = bytearray(json.dumps(value).encode())
    for _ in range(rng.randint(1, 2)):
        text[rng.randrange(len(text))] ^= 1 << rng.randrange(7)
    try:
        return json.loads(text.decode())
    except ValueError:
        return None


def with_checksum(value, how):
    """The value with the checksum of each state in it kept, dropped, or computed again."""
    if not isinstance(value, dict) or how == "kept":
        return value
    value = {key: with_checksum(one, how) for key, one in value.items()}
    if "checksum" in value and how == "dropped":
        del value["checksum"]
    elif "checksum" in value:
        with contextlib.suppress(ValueError, RecursionError):
            return signed(value)
    return value


def mutants(kinds, count, seed):
    rng = random.Random(seed)
    while count:
        name = rng.choice(list(kinds))
        saved = kinds[name].saved
        how = rng.choice(["kept", "dropped", "again", "again"])
        if rng.random() < 0.15:
            mutant = flip(saved, rng)
        else:
            mutant = saved
            for _ in range(rng.choice([1, 1, 2, 3])):
                with contextlib.suppress(KeyError, IndexError, TypeError, RecursionError):  # nothing left to change
                    mutant = mutate(mutant, rng)
        if mutant is not None:
            count -= 1
            with contextlib.suppress(RecursionError):
                mutant = with_checksum(mutant, how)
            yield name, how, mutant


def core(value):
    """A state's checksum now; None if there is none to compute."""
    try:
        return signed(value)["checksum"]
    except (ValueError, TypeError, RecursionError):
        return None


@contextlib.contextmanager
def no_hang(message):
    def stop(number, frame):
        raise TimeoutError(message)

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def outcome(kind, how, mutant):
    """What became of a mutant: refused, or delivered rows of the epoch. Anything else raises."""
    try:
        got = kind.deliver(mutant)
    except me.CheckpointMismatchError:
        return "refused"
    if how == "kept" and "checksum" in kind.saved and "checksum" in mutant:
        assert core(mutant) == kind.saved["checksum"], "a changed state with the old checksum was loaded"
    if kind.rows is not None:
        assert got <= kind.rows, f"delivered twice or from elsewhere: {got - kind.rows}"
    return "delivered"


@pytest.mark.parametrize("group", range(GROUPS))
def test_mutants_are_refused_or_deliver_rows_of_the_epoch(kinds, group):
    outcomes = Counter()
    for name, how, mutant in mutants(kinds, MUTANTS // GROUPS, seed=group):
        described = f"{name}, checksum {how}: {describe(mutant)}"
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            with no_hang(described):
                outcomes[outcome(kinds[name], how, mutant)] += 1
        except BaseException as error:
            error.add_note(described)
            raise
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) << 10
        assert taken < MEMORY, f"{taken >> 20} MiB for {described}"
    sys.stdout.write(f"group {group}: {dict(outcomes)}\n")
    assert outcomes["refused"] > outcomes["delivered"] > 0


def describe(value):
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return "deeply nested, or a huge number"


def test_states_that_are_not_changed_deliver(kinds):
    for kind in kinds.values():
        got = kind.deliver(copy.deepcopy(kind.saved))
        assert got
        assert kind.rows is None or got < kind.rows


def changed(kind, **changes):
    """A state with other values and the checksum of those."""
    return signed({**kind.saved, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"lanes": 1 << 19, "cursors": [[1 << 19, 0]], "turn": 0},
        {"lanes": 1 << 20, "cursors": [[1 << 20, 0]], "turn": 0},
        {"lanes": 16381, "cursors": [[16381, 0]], "turn": 0, "part": {"readers": 16384, "workers": 2, "items": [3, 3]}},
        {"part": {"readers": 1 << 20, "workers": 1 << 10, "items": [1] * (1 << 10)}},
        {"part": {"readers": 1 << 20, "workers": 1, "items": 1 << 62}},
        {"lanes": 1 << 13, "cursors": [[1 << 13, {"at": 4, "done": list(range(1000))}]]},
        {"lanes": 1 << 15, "cursors": [[1, 0], [1, 1]] * (1 << 14), "turn": 1},
        {"grown": [[[0, 1 << 40]]]},
        {"grown": [[[0, 1]]] * 10_000},
        {"later": [{"epoch": 1, "lanes": 1 << 19, "turn": 0, "cursors": [[1 << 19, 0]], "part": None, **ONE_EPOCH}]},
        {"later": [{"epoch": 1, "lanes": None, "turn": 0, "cursors": [], "part": None, **ONE_EPOCH}]},
        {"earlier": [{"epoch": -1}]},
        {"later": [{}] * 10_000},
        {"lanes": None, "cursors": [], "turn": 0, "part": {"readers": 2, "workers": 2, "items": [1, 1]}},
        {"lanes": None, "cursors": [], "turn": 3},
        {"epoch": 1 << 62},
        {"item_rows": 1 << 60},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_what_would_start_over_hang_or_take_memory_is_refused(kinds, changes):
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with no_hang("hangs"), pytest.raises(me.CheckpointMismatchError, match="damaged"):
        kinds["uniform"].deliver(changed(kinds["uniform"], **changes))
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) << 10 < MEMORY


@pytest.mark.parametrize(
    "changes",
    [{"turns": 0}, {"reader": 2}, {"readers": 1 << 20}, {"shares": [[0, 1, 1]]}, {"shares": [[1, 1, 1], [1, 1, 1]]}],
    ids=lambda changes: "-".join(changes),
)
def test_a_readers_deliveries_agree_with_its_turns_and_lanes(kinds, changes):
    kind = kinds["rank of a filter"]
    part = kind.saved["part"]
    assert part["turns"] > 1
    assert part["reader"] == 1
    with pytest.raises(me.CheckpointMismatchError, match="damaged"):
        kind.deliver(changed(kind, part={**part, **changes}))


@pytest.mark.parametrize("key", ["version", "cursors", "part", "grown", "later", "fingerprint"])
def test_deep_nesting_is_refused(kinds, key):
    deep = nested(100_000, lists=True)
    for state in ({**kinds["uniform"].saved, key: deep}, {**kinds["v1-uniform"].saved, key: deep}):
        with pytest.raises(me.CheckpointMismatchError):
            kinds["uniform"].deliver(state)


def test_a_readers_cursors_are_within_their_lanes(kinds):
    kind = kinds["rank of a filter"]
    (lane, end, _), *others = kind.saved["part"]["shares"]
    part = {**kind.saved["part"], "shares": [[lane, end, 1000], *others]}
    with pytest.raises(
        me.CheckpointMismatchError, match=rf"cursor \[1000\] of lane {lane} of 4 is after the lane's end"
    ):
        kind.load(changed(kind, part=part))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("filter", {"readers": 2, "workers": 2, "items": [1, 1]}),
        ("uniform", {"readers": 1, "reader": 0, "turns": 0, "shares": []}),
    ],
)
def test_what_a_reader_delivered_is_counted_as_its_pipeline_counts(kinds, name, part):
    with pytest.raises(me.CheckpointMismatchError, match=r"another kind of pipeline|now the pipeline is not counted"):
        kinds[name].load(changed(kinds[name], part=part))
