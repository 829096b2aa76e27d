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


def kept_in_batches(dataset):
    return dataset.filter(odds, batched=True).batch(4).survey()


def odds(columns):
    return [row % 2 == 1 for row in columns["id"]]


def kept(dataset):
    return dataset.shuffle(seed=3, window=20).filter(odd).batch(4).survey()


def mixed(dataset):
    return me.mix({"web": docs("web"), "code": docs("code")}, weights=[3, 1], seed=5).batch(4)


def whole(dataset):
    return me.mix({"web": docs("web"), "code": me.read("code")}, weights=[3, 1], seed=5, stop="all").batch(4)


def mixed_packs(dataset):
    parts = {"web": docs("web").pack(64, window=16).survey(), "code": me.read("code").pack(64).survey()}
    return me.mix(parts, weights=[3, 1], seed=5).batch(2)


def packed_mixture(dataset):
    return me.mix({"web": docs("web"), "code": me.read("code")}, weights=[2, 1], seed=5).pack(64, window=16).survey()


def joined(dataset):
    return me.concat([docs("web"), me.read("code")]).batch(4)
"""
UNITS = {
    "packs": "pack",
    "batched": "pack",
    "stream": "pack",
    "kept": "row",
    "kept_in_batches": "row",
    "mixed": "row",
    "whole": "row",
    "mixed_packs": "pack",
    "packed_mixture": "pack",
    "joined": "row",
}
WITHIN = {"batched": 15, "kept": 8, "mixed": 0.5}
"""How far an estimate of the share, in percent, may be off: windows of 16 documents have other numbers of tokens."""
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
def test_what_is_delivered_and_the_share_of_the_epoch_are_right_at_every_step(pipelines, capsys, name, ranks):
    unit = UNITS[name]
    *steps, (_, total) = in_steps(getattr(pipelines, name)(me.read("web")), ranks, unit)
    assert len(steps) > 2
    for state, done in steps[:: max(1, len(steps) // 8)]:
        alone = facts_of(capsys, state)
        counted = facts_of(capsys, state, "--data", "web", "--pipeline", f"pipelines:{name}", "-n", 1)
        assert alone["unit"] == unit
        assert alone["delivered"] == done or (not alone["delivered_exact"] and done < alone["delivered"] < 2 * done)
        assert (counted["delivered"], counted.get("total", alone["rows"])) == (done, total)
        assert counted["exact"]
        share = 100 * done / total
        assert counted["percent"] == pytest.approx(share, abs=0.001)
        if alone["percent"] is not None:
            assert alone["percent"] == pytest.approx(share, abs=0.001 if alone["exact"] else WITHIN.get(name, 7))
        elif alone["at_most_percent"] is not None:
            assert alone["at_most_percent"] + 10 >= share
        else:
            assert not alone["rows_done"], "the share is known once a window is done"


def test_a_share_is_not_0_while_the_first_window_of_packs_is_under_way(pipelines, capsys):
    dataset = me.read("web").shuffle(seed=1).pack(64)
    loader = me.Loader(dataset, batch_size=2)
    list(islice(loader, 3))
    state = loader.state_dict()
    facts = facts_of(capsys, state)
    assert (facts["unit"], facts["delivered"], facts["percent"], facts["at_most_percent"]) == ("pack", 6, None, 100)
    _, out = said(capsys, "inspect", "state.json")
    assert "delivered   6 packs of the epoch (at most 100 %, as the first window is under way" in out
    assert "in 3 batches of 2 packs" in out
    assert " 0 rows" not in out
    _, out = said(capsys, "inspect", "state.json", "--data", "web")  # it is built from the state alone
    total = len(list(dataset))
    assert f"delivered   6 of {total} packs of the epoch ({600 / total:.3g} %), in 3 batches of 2 packs" in out
    assert "next rows\n" in out


def test_packs_are_counted_through_a_resume_with_other_ranks_and_batches(pipelines, capsys):
    dataset = pipelines.packs(me.read("web"))
    loader = me.Loader(dataset, batch_size=2)
    list(islice(loader, 4))
    state = loader.state_dict()
    ranks = [me.Loader(dataset.shard(2, rank), batch_size=3) for rank in range(2)]
    for loader in ranks:
        loader.load_state_dict(state)
        list(islice(loader, 2))
    state = ranks[0].state_dict()
    assert facts_of(capsys, state)["delivered"] == 4 * 2 + 2 * 2 * 3
    _, out = said(capsys, "inspect", "state.json")
    assert "delivered   20 packs of the epoch (about" in out
    assert "  read by     1 rank, batches of 2 packs, from the beginning of epoch 0 on\n" in out
    assert "              2 ranks, batches of 3 packs, from batch 4 of epoch 0 on\n" in out
    assert "lane" not in out
    assert "turn" not in out


def test_a_mixture_that_never_ends_has_no_share(pipelines, capsys):
    dataset = me.mix({"web": me.read("web"), "code": me.read("code")}, seed=1, stop="never")
    loader = me.Loader(dataset, batch_size=50)
    list(islice(loader, 8))
    assert facts_of(capsys, loader.state_dict())["percent"] is None
    _, out = said(capsys, "inspect", "state.json")
    assert "delivered   400 rows of an epoch that never ends, in 8 batches of 50 rows" in out
    assert "code  200 of 60 rows (about 333 %)" in out


def test_a_group_of_rows_under_way_is_not_0_percent(pipelines, capsys):
    dataset = me.read("web").map(twice, batched=True, batch_size=30, remove_columns=["input_ids"])
    items = iter(dataset)
    list(islice(items, 10))
    facts = facts_of(capsys, dataset.state_dict())
    assert (facts["delivered"], facts["percent"], facts["at_most_percent"]) == (10, None, 20)
    list(islice(items, 80))
    facts = facts_of(capsys, dataset.state_dict())
    assert (facts["delivered"], facts["percent"]) == (90, 30)


def twice(columns):
    return {"id": [row for row in columns["id"] for _ in range(2)]}


def test_a_state_of_one_rank_says_so(pipelines, capsys):
    loader = me.Loader(me.read("web").filter(pipelines.odd).shard(2, 1), batch_size=4, even=None)
    list(islice(loader, 3))
    Path("state.json").write_text(json.dumps(loader.state_dict()))
    _, out = said(capsys, "inspect", "state.json")
    assert "delivered   3 batches of 4 rows since it last started or resumed" in out
    assert "part        what reader 1 of 2 delivered; merge_states joins the states of all" in out
    _, out = said(capsys, "diff", "state.json", "state.json")
    assert "how much lies between is unknown: a state holds what one of several ranks delivered" in out


def test_parts_are_named_and_words_that_only_midepoch_knows_are_not_used(pipelines, capsys):
    loader = me.Loader(pipelines.mixed(me.read("web")))
    list(islice(loader, 10))
    Path("state.json").write_text(json.dumps(loader.state_dict()))
    _, out = said(capsys, "inspect", "state.json")
    assert out.splitlines() == [
        "(the whole file): state of version 1, epoch 0, of 210 rows in 4 files",
        "  delivered   40 rows of the epoch (about 20 %), in 10 batches of 4 rows",
        "  parts       web   30 of 150 rows (20 %)",
        "              code  10 of 60 rows (16.7 %)",
        "  pipeline    mix({",
        "                  'web': read(…).shuffle(seed=3, window=20),",
        "                  'code': read(…).shuffle(seed=3, window=20),",
        "              }, weights=[3.0, 1.0], seed=5).batch(4)",
        "  read by     1 rank, batches of 4 rows, from the beginning of epoch 0 on",
    ]


WRITTEN = {
    "read(…).shuffle(seed=42).map(counted).filter(odd).pack(128).batch(4)": lambda rows, module: (
        rows.shuffle(seed=42).map(module.counted).filter(module.odd).pack(128).batch(4)
    ),
    "read(…, columns=['id']).take(50).skip(3).shuffle(seed=1, level='row')": lambda rows, _: (
        rows.take(50).skip(3).shuffle(seed=1, level="row").select_columns(["id"])
    ),
    "read(…).map(counted, remove_columns=['input_ids'], batched=True, one_to_one=True)": lambda rows, module: rows.map(
        module.counted, batched=True, one_to_one=True, remove_columns=["input_ids"]
    ),
    "read(…).train_test_split(0.2, seed=7).test.pack(64, eos=0, strategy='concat')": lambda rows, _: (
        rows.train_test_split(0.2, seed=7).test.pack(64, strategy="concat", eos=0)
    ),
    "read(…).rename_column('id', 'n').cast_column('n', 'int32').remove_columns(['input_ids'])": lambda rows, _: (
        rows.rename_column("id", "n").cast_column("n", "int32").remove_columns(["input_ids"])
    ),
    "concat([\n    read(…).take(5),\n    read(…).filter(odd),\n]).batch(2)": lambda rows, module: me.concat(
        [rows.take(5), rows.filter(module.odd)]
    ).batch(2),
    "mix([\n    read(…),\n    read(…).shuffle(seed=1),\n], seed=2, stop='never')": lambda rows, _: me.mix(
        [rows, rows.shuffle(seed=1)], seed=2, stop="never"
    ),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_a_pipeline_is_printed_as_it_was_written(pipelines, capsys, written):
    dataset = WRITTEN[written](me.read("web"), pipelines)
    items = iter(dataset)
    if "map(counted, " not in written:  # whose function is one of rows
        next(items)
    code = facts_of(capsys, dataset.state_dict())["code"]
    if "map(counted, " in written:
        assert sorted(code) == sorted(written)
    else:
        assert code == written


def test_a_long_pipeline_has_a_line_for_each_stage(pipelines, capsys):
    dataset = me.read("web").shuffle(seed=42, level="block", window=10, window_blocks=2, window_bytes="1MiB")
    dataset = dataset.map(pipelines.counted, fn_kwargs={}).filter(pipelines.odd).pack(128, strategy="first_fit", pad=0)
    lines = facts_of(capsys, dataset.state_dict())["code"].splitlines()
    assert lines == [
        "read(…)",
        "    .shuffle(seed=42, window=10, window_blocks=2, window_bytes=1048576)",
        "    .map(counted)",
        "    .filter(odd)",
        "    .pack(128, pad=0, strategy='first_fit')",
    ]


def test_diff_counts_packs_and_the_items_of_parts(pipelines, capsys):
    for name, unit in (("packs", "pack"), ("mixed_packs", "pack"), ("mixed", "row"), ("kept", "row")):
        steps = in_steps(getattr(pipelines, name)(me.read("web")), 1, unit)
        (first, before), (second, after) = steps[1], steps[6]
        for path, state in (("first.json", first), ("second.json", second)):
            Path(path).write_text(json.dumps(state))
        code, out = said(capsys, "diff", "first.json", "second.json")
        assert code == 0
        assert f"{after - before} {unit}s were delivered between them" in out
        assert "lane" not in out
        code, out = said(capsys, "diff", "second.json", "first.json", "--json")
        value = json.loads(out)
        assert (value["unit"], value["between"]) == (unit, before - after)
        counts = {part["name"]: part["between"] for part in value["parts"]}
        assert counts == {} or (set(counts) == {"web", "code"} and sum(counts.values()) == before - after)
        code, out = said(
            capsys, "diff", "first.json", "second.json", "--data", "web", "--pipeline", f"pipelines:{name}"
        )
        assert f" of {steps[-1][1]} {unit}s of the epoch" in out


def test_packs_between_epochs_are_counted_with_the_files(pipelines, capsys):
    loader = me.Loader(pipelines.packs(me.read("web")))
    first = loader.state_dict()
    got = list(islice(loader, 5))
    loader.load_state_dict(loader.state_dict())
    Path("first.json").write_text(json.dumps(loader.state_dict()))
    rest = list(loader)
    got += list(islice(loader, 2))
    Path("second.json").write_text(json.dumps(loader.state_dict()))
    _, out = said(capsys, "diff", "first.json", "second.json")
    assert "they are 1 epoch apart, and only reading tells how many packs an epoch has" in out
    _, out = said(capsys, "diff", "first.json", "second.json", "--data", "web", "--pipeline", "pipelines:packs")
    assert f"{len(rest) + 2} packs were delivered between them" in out
    assert first["epoch"] == 0
