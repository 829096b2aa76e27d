"""Pipelines that are counted once they are surveyed, with functions that other processes can import."""

import midepoch as me
from worlds import is_no_seventh


def token_lists(columns):
    """One row for each, as a tokenizer returns them."""
    return {"input_ids": [list(tokens) for tokens in columns["input_ids"]]}


def longer(columns):
    """The same once the tokenizer has changed: one document gets one token more."""
    masks = [list(mask) for mask in columns["loss_mask"]]
    tokens = token_lists(columns)["input_ids"]
    for number, own, mask in zip(columns["id"], tokens, masks, strict=True):
        if number == 20:
            own.append(1)
            mask.append(0)
    return {"input_ids": tokens, "loss_mask": masks}


def is_late(row):
    return row["id"] > 100


def is_changed(row):
    """The filter once it has changed: it keeps a row less."""
    return is_no_seventh(row) and row["id"] != 20


def ids_of_packs(item):
    """What identifies a row or a pack: its id, or its tokens, of which no two rows have the same."""
    return [int(token) for token in item["input_ids"]] if "cu_seqlens" in item else [int(item["id"])]


def as_list(items):
    return [ids_of_packs(item) for item in items]


def pipelines(name, folder, *, shuffled=True):
    """A pipeline that is counted after ``survey``."""
    rows = me.read(folder)
    rows = rows.shuffle(1, window=20, window_blocks=2) if shuffled else rows
    if name == "filter":
        return rows.filter(is_no_seventh)
    if name == "mixture":
        parts = [rows.filter(is_no_seventh), rows.filter(is_late), me.read(folder).take(30)]
        return me.mix(dict(zip("abc", parts, strict=True)), [3, 2, 1], stop="all")
    tokens = rows.map(token_lists, batched=True, batch_size=16, one_to_one=True).filter(is_no_seventh)
    if name == "one to one":
        return tokens
    options = {} if name == "concat" else {"window": 16}
    return tokens.pack(32, strategy=name, eos=7, **options)
