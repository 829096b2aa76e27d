"""What a trace says of an item, and what the item says of itself, of the files of ``counted``."""

from counted import length_of
from midepoch.dataset import plan_of

FIRST_ROWS = {"0.arrow": 0, "1.arrow": 17, "2.arrow": 17, "3.arrow": 48}


def content(item, batched):
    """What identifies the rows of an item: the tokens of each pack, the id of each row."""
    if batched:
        columns = item["input_ids"] if "cu_seqlens" in item else [[number] for number in item["id"]]
        return [list(map(int, tokens)) for tokens in columns]
    return [list(map(int, item["input_ids"])) if "cu_seqlens" in item else [item["id"]]]


def traced_content(lines, eos):
    """The same, as the lines of a trace say it."""
    places = {}
    for line in lines:
        number = FIRST_ROWS[line["file"]] + line["row"]
        tokens = [number]
        if line["start"] is not None:
            document = [number] * length_of(number) + ([] if eos is None else [eos])
            tokens = document[line["start"] : line["stop"]]
            assert line["document"] == len(places.get((line["place"], "documents"), ()))
            places.setdefault((line["place"], "documents"), []).append(number)
        places.setdefault(line["place"], []).extend(tokens)
    found = {place: tokens for place, tokens in places.items() if isinstance(place, int)}
    assert sorted(found) == list(range(len(found)))
    return [found[place] for place in sorted(found)]


def eos_of(dataset):
    specs = [stage.spec for stage in plan_of(dataset).pipeline.stages if hasattr(stage, "spec")]
    return specs[0].eos if specs else None
