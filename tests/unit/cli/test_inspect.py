"""``inspect`` and ``diff`` of packs, mixtures and filters say what was delivered, as a person would say it."""

import json
import sys
from itertools import islice, zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.cli.main import main
from midepoch.dataset import with_order_step
from midepoch.order.selection import Slices

MODULE = """
import midepoch as me


def odd(row):
    return row["id"] % 2 == 1


def counted(row):
    return {"number": row["id"]}


def docs(name, **options):
    return me.read(name).shuffle(seed=3, window=20, **options)


def packs(dataset):
    return dataset.shuffle(seed=3, window=20).pack(64, window=16).survey()


def batched(dataset):
    return dataset.shuffle(seed=3, window=20).map(counted).filter(odd).pack(64, window=16).batch(3).survey()


def stream(dataset):
    return dataset.pack(64, strategy="concat", eos=0).survey()


def kept(dataset):
    return dataset.shuffle(seed=3, window=20).filter(odd).batch(4).survey()


def some(dataset):
    return dataset.filter(odd).batch(4)


def surveyed(dataset):
    return some(dataset).survey()


def mixed(dataset):
    return me.mix({"web": docs("web"), "code": docs("code")}, weights=[3, 1], seed=5).batch(4)


def mixed_packs(dataset):
    parts = {"web": docs("web").pack(64, window=16).survey(), "code": me.read("code").pack(64).survey()}
    return me.mix(parts, weights=[3, 1], seed=5).batch(2)


def joined(dataset):
    return me.concat([docs("web"), me.read("code")]).batch(4)
"""
UNITS = {
    "packs": "pack",
    "batched": "pack",
    "stream": "pack",
    "kept": "row",
    "mixed": "row",
    "mixed_packs": "pack",
    "joined": "row",
}
ROWS = {"web": 150, "code": 60}


@pytest.fixture
def pipelines(tmp_path, monkeypatch):
    """A working directory with two datasets of documents, and a module of pipelines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "pipelines", raising=False)
    monkeypatch.setenv("MIDEPOCH_INDEX_DIR", str(tmp_path / "index"))
    for name, rows in ROWS.items():
        Path(name).mkdir()
        ids = range(rows)
        table = pa.table({"id": ids, "input_ids": [[row] * (row * 7 % 29 + 3) for row in ids]})
        pq.write_table(table.slice(0, rows // 2), f"{name}/part-0.parquet", row_group_size=10)
        pq.write_table(table.slice(rows // 2), f"{name}/part-1.parquet", row_group_size=10)
    Path("pipelines.py").write_text(MODULE)
    import pipelines

    yield pipelines
    sys.modules.pop("pipelines", None)


def said(capsys, *arguments):
    code = main([*map(str, arguments)])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, printed.out


def facts_of(capsys, state, *arguments):
    Path("state.json").write_text(json.dumps(state))
    code, out = said(capsys, "inspect", "state.json", "--json", *arguments)
    assert code == 0
    [facts] = json.loads(out)
    return facts


def size(item, unit):
    """The rows or packs of an item."""
    ids = item["input_ids" if unit == "pack" else "id"]
    return 1 if unit == "pack" and getattr(ids, "ndim", 2) == 1 else len(ids)


def in_steps(dataset, ranks, unit):
    """After each step of all ranks: the state, and how many rows or packs came so far. The last are those of all."""
    dataset = dataset.lanes(2 * ranks - 1)  # which are at different places after most steps, if there are several
    loaders = [me.Loader(dataset.shard(ranks, rank), even=None) for rank in range(ranks)]
    done, steps = 0, []
    for items in zip_longest(*loaders):
        done += sum(size(item, unit) for item in items if item is not None)
        steps.append((loaders[0].state_dict(), done))
    return steps


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", UNITS)
def test_with_files_what_is_done_is_counted_at_every_step(pipelines, capsys, name, ranks):
    unit = UNITS[name]
    *steps, (_, total) = in_steps(getattr(pipelines, name)(me.read("web")), ranks, unit)
    assert len(steps) > 2
    for state, done in steps[:: max(1, len(steps) // 8)]:
        counted = facts_of(capsys, state, "--data", "web", "--pipeline", f"pipelines:{name}", "-n", 1)
        assert (counted["unit"], counted["done"], counted["total"]) == (unit, done, total)


def test_packs_that_are_not_counted_are_items(pipelines, capsys):
    loader = me.Loader(me.read("web").shuffle(seed=1).filter(pipelines.odd).pack(64), batch_size=2)
    list(islice(loader, 3))
    assert facts_of(capsys, loader.state_dict())["items"] == 3
    _, out = said(capsys, "inspect", "state.json", "--data", "web")
    assert "done        3 items of 2 rows; --data says of how many" in out
    assert "next rows   The state is of a pipeline with filter, which cannot be built from the state alone" in out


def test_what_a_rank_delivered_ahead_of_others_is_done(pipelines, capsys):
    dataset = me.read("web").filter(pipelines.odd).lanes(1)
    loaders = [me.Loader(dataset.shard(2, rank), batch_size=4, even=None) for rank in range(2)]
    ahead, behind = map(iter, loaders)
    got = [*islice(ahead, 5), next(behind)]
    state = me.merge_states([loader.state_dict() for loader in loaders])
    facts = facts_of(capsys, state, "--data", "web", "--pipeline", "pipelines:surveyed")
    assert (facts["done"], facts["total"]) == (sum(len(batch["id"]) for batch in got), 75)


def test_a_state_of_one_rank_says_so(pipelines, capsys):
    loader = me.Loader(me.read("web").filter(pipelines.odd).shard(2, 1), batch_size=4, even=None)
    list(islice(loader, 3))
    Path("state.json").write_text(json.dumps(loader.state_dict()))
    _, out = said(capsys, "inspect", "state.json")
    assert "part        what reader 1 of 2 delivered; merge_states joins the states of all" in out
    _, out = said(capsys, "inspect", "state.json", "--data", "web", "--pipeline", "pipelines:some")
    assert "fits        these files" in out
    assert "next rows   The next rows are known only by reading" in out
    _, out = said(capsys, "diff", "state.json", "state.json")
    assert "how much lies between is unknown" in out


def test_words_that_only_midepoch_knows_are_not_used(pipelines, capsys):
    loader = me.Loader(pipelines.mixed(me.read("web")))
    list(islice(loader, 10))
    Path("state.json").write_text(json.dumps(loader.state_dict()))
    _, out = said(capsys, "inspect", "state.json")
    assert out.splitlines() == [
        "(the whole file): state of version 1, epoch 0, of 210 rows in 4 files",
        "  done        10 items of 4 rows; --data says of how many",
        "  pipeline    mix(weights=[3.0, 1.0], seed=5, stop='first')",
        "                  web:",
        "                      shuffle(level='block', seed=3, window=20, window_blocks=32, window_bytes=536870912)",
        "                  code:",
        "                      shuffle(level='block', seed=3, window=20, window_blocks=32, window_bytes=536870912)",
        "              batch(n=4)",
        "  read by     1 rank, batches of 4, from the beginning of epoch 0 on",
    ]


@pytest.mark.parametrize("order", [{"shuffle": True, "split_rows": 20}, {"shuffle_buffer_size": 30}])
def test_states_of_shuffled_splits_are_read(pipelines, capsys, order):
    loader, _ = me.StructuredDataset.create_dataloader("web", "parquet", batch_size=8, **order)
    next(iter(loader))
    facts = facts_of(capsys, loader.state_dict(), "--data", "web")
    assert (facts["items"], facts["item_rows"], facts["rows"], facts["fits"]) == (1, 8, ROWS["web"], True)
    assert "pass --pipeline" in facts["why_not_next"]


def test_the_rows_of_a_split_expression_are_counted(pipelines, capsys):
    rows = with_order_step(me.read("web"), "split", Slices(intervals=((10, 40), (60, 150))))
    next(iter(rows))
    facts = facts_of(capsys, rows.state_dict(), "-n", 1, "--data", "web")
    assert (facts["done"], facts["total"], facts["next"]) == (1, 120, [{"file": "part-0.parquet", "row": 11}])


@pytest.mark.parametrize("name", ["packs", "mixed_packs", "mixed", "kept"])
def test_diff_counts_what_lies_between(pipelines, capsys, name):
    unit = UNITS[name]
    steps = in_steps(getattr(pipelines, name)(me.read("web")), 1, unit)
    for path, (state, _) in (("first.json", steps[1]), ("second.json", steps[6])):
        Path(path).write_text(json.dumps(state))
    between = steps[6][1] - steps[1][1]
    with_files = ["--data", "web", "--pipeline", f"pipelines:{name}"]
    code, out = said(capsys, "diff", "first.json", "second.json", *with_files)
    assert code == 0
    assert f"{between} {unit}s were delivered between them" in out
    _, out = said(capsys, "diff", "second.json", "first.json", "--json", *with_files)
    assert (json.loads(out)["unit"], json.loads(out)["between"]) == (unit, -between)


def test_packs_between_epochs_are_counted_with_the_files(pipelines, capsys):
    loader = me.Loader(pipelines.packs(me.read("web")))
    list(islice(loader, 5))
    loader.load_state_dict(loader.state_dict())
    Path("first.json").write_text(json.dumps(loader.state_dict()))
    rest = list(loader)
    list(islice(loader, 2))
    Path("second.json").write_text(json.dumps(loader.state_dict()))
    _, out = said(capsys, "diff", "first.json", "second.json", "--data", "web", "--pipeline", "pipelines:packs")
    assert f"{len(rest) + 2} packs were delivered between them" in out
