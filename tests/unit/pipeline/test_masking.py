"""Which edits leave rows out of packs alone."""

import pytest

import midepoch as me
from counted import same_columns, write_files
from midepoch.pipeline.masking import masked_edits


@pytest.fixture
def rows(tmp_path):
    write_files(tmp_path)
    return me.read(tmp_path)


def test_edits_inside_a_window_and_those_after_them_are_masked(rows):
    packs = rows.pack(16, window=5).plan.pipeline
    assert masked_edits(packs, [(10, 0), (5, 0)], 2, 0) == 0
    assert masked_edits(packs, [(10, 0), (5, 1)], 2, 0) == 2
    assert masked_edits(packs, [(10, 0), (5, 0)], 1, 2) == 1
    assert masked_edits(packs, [(10, 1)], 0, 0) == 0


def test_only_the_part_whose_window_is_under_way_is_masked(rows):
    parts = {"packs": rows.pack(16, window=5), "others": rows.pack(16, strategy="concat")}
    mixture = me.mix(parts, weights=[1, 1], stop="all").plan.pipeline
    of_packs, of_others = (3, 0, 10, 1), (3, 0, 9, 0)
    assert masked_edits(mixture, [of_packs + of_others], (1, 2), 0) == (1, 0)
    assert masked_edits(mixture, [of_packs + of_others], (0, 2), 0) == 0
    assert masked_edits(mixture, [of_packs + of_others], (0, 2), (0, 1)) == (0, 2)


def test_a_window_of_mixed_rows_masks_the_edits_of_all_parts(rows):
    mixture = me.mix({"a": rows, "b": rows.shuffle(1)}, weights=[1, 1], stop="all").pack(16, window=5).plan.pipeline
    begin = mixture.source.begin
    assert masked_edits(mixture, [(*begin, 1)], (1, 1), 0) == (1, 1)
    assert masked_edits(mixture, [(*begin, 0)], (1, 1), 0) == 0


def test_groups_whose_rows_are_not_known_by_their_keys_are_refused(rows):
    for dataset, cursor in (
        (rows.map(same_columns, batched=True), (10, 1)),
        (rows.map(same_columns, batched=True).pack(16), (10, 0, 1)),
        (me.mix({"a": rows.map(same_columns, batched=True)}, weights=[1]).pack(16), (1, 0, 10, 0, 1)),
    ):
        with pytest.raises(me.CheckpointMismatchError, match="inside a group of rows"):
            masked_edits(dataset.plan.pipeline, [cursor], 1 if len(cursor) < 5 else (1,), 0)
