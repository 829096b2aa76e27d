"""Chat messages with real images, some of them broken; a real tokenizer; and functions that process samples."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from files import plain
from media import picture

WORDS = ("a", "cat", "dog", "house", "sees", "red", "blue", "the", "of", "in", "two", "three", "sky", "tree", "runs")
BROKEN = b"\x89PNG no picture"


def words(number: int, count: int) -> str:
    """A text of ``count`` words, different for each number."""
    return " ".join(WORDS[(number * 7 + position * (number % 5 + 1)) % len(WORDS)] for position in range(count))


@cache
def tokenizer() -> Tokenizer:
    """A BPE tokenizer trained on texts of these words."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>", "<image>"], show_progress=False)
    trained.train_from_iterator((words(number, 12) for number in range(40)), trainer)
    return trained


@dataclass(frozen=True)
class Chat:
    """One row: the number of words of its text, its number of images, and whether the last image is broken."""

    words: int
    images: int = 0
    broken: bool = False

    def row(self, number: int) -> dict[str, Any]:
        files = [picture(number + 1 + index, ("PNG", "JPEG")[index % 2]) for index in range(self.images)]
        if self.broken:
            files = [*files[:-1], BROKEN] if files else [BROKEN]
        content = [{"type": "image"} for _ in files] + [{"type": "text", "text": words(number, self.words)}]
        return {
            "id": number,
            "messages": [{"role": "user", "content": content}],
            "images": [{"bytes": file, "path": None} for file in files],
        }


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        (
            "messages",
            pa.list_(
                pa.struct(
                    [
                        ("role", pa.string()),
                        ("content", pa.list_(pa.struct([("type", pa.string()), ("text", pa.string())]))),
                    ]
                )
            ),
        ),
        ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
    ]
)


def table(chats: list[Chat], first: int = 0) -> pa.Table:
    return pa.Table.from_pylist([chat.row(number) for number, chat in enumerate(chats, start=first)], SCHEMA)


def write_parquet(folder: Path, chats: list[Chat], files: int = 2, block: int = 5) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    each = -(-len(chats) // files)
    for number in range(files):
        rows = table(chats[number * each : (number + 1) * each], number * each)
        pq.write_table(rows, folder / f"part-{number}.parquet", row_group_size=block)
    return folder


def write_jsonl(folder: Path, chats: list[Chat]) -> Path:
    """JSON lines with a system message of plain text and a user message of parts. Images are files in a subfolder."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    with (folder / "chats.jsonl").open("w") as file:
        for number, chat in enumerate(chats):
            row = chat.row(number)
            for index, stored in enumerate(row.pop("images")):
                name = f"images/{number}-{index}.png"
                (folder / name).write_bytes(stored["bytes"])
                row["messages"][0]["content"][index] = {"type": "image_url", "image_url": {"url": name}}
            row["messages"].insert(0, {"role": "system", "content": "you see"})
            file.write(json.dumps(row) + "\n")
    return folder / "chats.jsonl"


def process(sample: dict[str, Any]) -> dict[str, Any]:
    """One token for each image, then the tokens of the text, and the pixels of the images."""
    content = sample["messages"][-1]["content"]
    text = "".join(part["text"] for part in content if part["type"] == "text")
    tokens = [1] * len(sample["images"]) + tokenizer().encode(text).ids
    labels = [-100] * len(sample["images"]) + tokens[len(sample["images"]) :]
    pixels = [np.asarray(image.convert("RGB"), np.float32) / 255 for image in sample["images"]]
    return {
        "id": sample["id"],
        "input_ids": np.array(tokens, np.int64),
        "labels": np.array(labels, np.int64),
        "pixel_values": np.stack(pixels) if pixels else None,
        "image_sizes": np.array([image.size for image in sample["images"]]) if pixels else None,
    }


def cropped(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The same, with random crops of the images."""
    crops = []
    for image in sample["images"]:
        left, top = int(rng.integers(4)), int(rng.integers(3))
        crops.append(image.crop((left, top, left + 2, top + 2)))
    return process({**sample, "images": crops}) | {"noise": int(rng.integers(1 << 30))}


def ids(items: list[Any]) -> list[int]:
    """The ids of samples or packs."""
    found = [plain(item["id"]) for item in items]
    return [number for one in found for number in (one if isinstance(one, list) else [one])]
