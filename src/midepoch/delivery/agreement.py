"""Whether all ranks read the same: they compare what they read through the store of their process group."""

import json
from typing import Any

from midepoch._common.hashing import digest
from midepoch.checkpoint.fingerprint import pipeline_difference
from midepoch.delivery.passes import Pass
from midepoch.errors import RanksDisagreeError

REMEDIES = {
    "data": "Open the same files on all ranks. A list of files may differ while a network file system catches up",
    "pipeline": "Build the same pipeline, with the same seeds, on all ranks",
    "number of lanes": "Pass the same num_workers on all ranks, or fix the lanes with dataset.lanes(n)",
    "rows per batch": "Pass the same batch size on all ranks",
    "shard mode": "Call shard with the same mode on all ranks",
    "epochs per loop": "Call repeat with the same number on all ranks",
    "even": "Pass the same even= on all ranks",
    "batches per step": "Pass the same global_batch_size and micro_batch_size on all ranks",
    "balance": "Pass the same balance= on all ranks",
    "kind of counting": "Call survey() on all ranks, and load the same state",
    "survey": "Call survey() with the same version, and the same functions, on all ranks",
    "start": "Load the same state, or set the same epoch, on all ranks",
}


def check_ranks_agree(store: Any, run: Pass, *, loader: int, rank: int) -> None:
    """Write what this rank reads, and raise if a rank that wrote before reads something else.

    Nothing waits for other ranks: of two that differ, at least the later one raises. A rank compares with its
    neighbours and with the first, which is enough to find any difference. Ranks with the same shard index, such as
    tensor-parallel peers, compare with each other. ``loader`` is the number of the Loader in this process, ``rank`` the
    global rank. ``store`` is a store of torch.distributed, whose ``get`` does not wait for a key that is there.
    """
    plan = run.plan
    folder = f"midepoch/{loader}/{plan.ranks}/{run.revision}/{run.start.epoch}"
    mine = {"rank": rank, "reads": _facts(run)}
    # First write, then look: of two ranks that do so at the same time at least one sees the other.
    _compare(json.loads(store.compare_set(f"{folder}/{plan.rank}", "", json.dumps(mine))), mine)
    for index in dict.fromkeys([0, (plan.rank - 1) % plan.ranks, (plan.rank + 1) % plan.ranks]):
        key = f"{folder}/{index}"
        if store.check([key]):
            _compare(json.loads(store.get(key)), mine)


def _facts(run: Pass) -> dict[str, Any]:
    """What all ranks must have in common, by name."""
    plan, session = run.plan, run.progress().session
    start, fingerprint = session.start, plan.pipeline.fingerprint
    survey = session.pipeline.known_survey if session.counted else None
    cursors = json.dumps(start.to_dict(fingerprint)["cursors"])
    return {
        "data": fingerprint["data"],
        "pipeline": fingerprint["pipeline"],
        "number of lanes": start.lanes,
        "rows per batch": plan.pipeline.item_rows,
        "shard mode": plan.mode,
        "epochs per loop": plan.epochs_per_loop,
        "kind of counting": "by items" if session.counted else "by cursors",
        "survey": None if survey is None else survey.digest,
        "even": plan.even,
        "batches per step": plan.items_per_step,
        "balance": plan.pipeline.balanced,
        "start": f"epoch {start.epoch}, turn {start.turn}, cursors {digest(cursors.encode()).hex()}",
    }


def _compare(other: dict[str, Any], mine: dict[str, Any]) -> None:
    for name, value in mine["reads"].items():
        there = other["reads"].get(name)
        if json.dumps(there) == json.dumps(value):
            continue
        then, now = f"rank {other['rank']}", f"rank {mine['rank']}"
        difference = f"the {name} is {_short(there)} on {then} and {_short(value)} on {now}"
        if name == "pipeline":
            difference = f"on {now} (now), compared with {then} (then), {pipeline_difference(there, value)}"
        raise RanksDisagreeError(
            f"The ranks do not read the same, so rows would be lost and repeated: {difference}. {REMEDIES[name]}. If "
            "this is intended, pass check_ranks=False to the Loader."
        )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else text[:197] + "..."
