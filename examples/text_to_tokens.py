"""From text files to packed tokens: killed at any moment, resumed with any number of workers.

python examples/text_to_tokens.py FOLDER [--workers N] [--kill-after STEP]

It writes JSON lines of two kinds of text, trains a BPE tokeniser on them, tokenises them once, packs each kind, mixes
the packs in shares of tokens, and trains a small language model. Start it again in the same folder to resume. What each
step received is appended to FOLDER/steps.jsonl. It needs the package tokenizers, which comes with transformers.
"""

import argparse
import hashlib
import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the threads of the cache tokenise side by side

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import midepoch as me

STEPS, SAVE_EVERY, EPOCHS = 40, 4, 3
LENGTH, VOCABULARY, END = 256, 400, 0
SHARES = {"prose": 0.75, "chat": 0.25}
"""Of the tokens. Chats are far shorter, so of the documents they are most."""


def train(folder: Path, workers: int = 2, kill_after: int | None = None) -> None:
    """Train for some steps, from the last checkpoint if there is one."""
    packs = {name: tokens(folder, name).shuffle(seed=42).pack(**PACKING) for name in SHARES}
    mixture = me.mix(packs, weights=SHARES, by="tokens", stop="all", seed=1)
    dataset = mixture.select_columns(["id", "input_ids", "document_ids"]).lanes(4)
    loader = me.Loader(dataset, batch_size=8, num_workers=workers)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 32), torch.nn.Linear(32, VOCABULARY))
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        loader.load_state_dict(saved["loader"])

    while step < STEPS:
        for batch in loader:  # the rest of an epoch
            step += 1
            done = loader.progress()
            share = (done.epoch + (done.tokens or 0) / (done.epoch_tokens or 1)) / EPOCHS
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * max(0.1, 1 - share)  # it falls with the tokens, also after a resume
            loss = next_token_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log(folder / "steps.jsonl", step, batch, loader.metrics())
            if step % SAVE_EVERY == 0:
                print(f"step {step}: loss {loss.item():.2f}, {done}")
                content = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(content | {"loader": loader.state_dict()}, folder / "checkpoint.pt")
            if step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == STEPS:
                break


PACKING: dict[str, Any] = {"length": LENGTH, "eos": END, "pad": END, "overlong": "drop", "others": "join", "window": 64}
"""Whole documents share packs. The other columns, here ``id``, have a value for each document of a pack."""


def tokens(folder: Path, name: str) -> Any:
    """The tokens of a kind of text, as Arrow files: made by the first run, mapped by all others."""
    tokenizer, version = trained(folder)
    rows = me.read(folder / "data" / f"{name}-*.jsonl")
    rows = rows.map(
        encode,
        batched=True,
        one_to_one=True,
        fn_kwargs={"tokenizer": tokenizer},
        remove_columns=["text"],
        version=version,  # of a tokeniser only the class is known: another vocabulary must not use these files
    )
    return rows.cache(folder / f"tokens-{name}", executor=ThreadPoolExecutor(2))


def encode(columns: dict[str, list[Any]], tokenizer: Tokenizer) -> dict[str, list[list[int]]]:
    """The tokens of each text."""
    return {"input_ids": [one.ids for one in tokenizer.encode_batch(columns["text"])]}


def trained(folder: Path) -> tuple[Tokenizer, str]:
    """A byte-level BPE of all texts, trained once, and a digest of it."""
    path = folder / "tokenizer.json"
    if not path.exists():
        texts = (row["text"] for row in me.read(folder / "data"))
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["<end>"],  # the first has the id END
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.save(str(path))
    return Tokenizer.from_file(str(path)), hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def next_token_loss(model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """The loss of each token that follows one of the same document. Padding belongs to no document."""
    inputs, targets = batch["input_ids"][:, :-1].long(), batch["input_ids"][:, 1:].long()
    documents = batch["document_ids"]
    inside = (documents[:, :-1] == documents[:, 1:]) & (documents[:, 1:] >= 0)
    return torch.nn.functional.cross_entropy(model(inputs)[inside], targets[inside])


def save(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that a kill leaves either the old one or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def log(path: Path, step: int, batch: dict[str, Any], metrics: dict[str, float]) -> None:
    """Log which documents a step received, and the tokens of the epoch so far, of each kind of text too."""
    of_epoch = {name: metrics[name] for name in ("tokens", *(f"tokens_{name}" for name in SHARES))}
    ids = [name for of_pack in batch["id"] for name in of_pack]
    with path.open("a") as file:
        file.write(json.dumps({"step": step, "ids": ids, **of_epoch}) + "\n")


def write(folder: Path) -> None:
    """Write texts of words that are made of syllables, unless they are there."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    draws = random.Random(0)
    syllables = [one + two for one in "bdfgklmnprst" for two in "aeiou"]
    words = ["".join(draws.choices(syllables, k=draws.randint(1, 3))) for _ in range(300)]
    for name, count, most in (("prose", 60, 110), ("chat", 130, 20)):
        for part in range(2):
            rows = [
                (f"{name}-{part}-{row}", draws.choices(words, k=draws.randint(most // 2, most))) for row in range(count)
            ]
            lines = [json.dumps({"id": key, "text": " ".join(chosen) + "."}) + "\n" for key, chosen in rows]
            (folder / f"{name}-{part}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the data, the tokens, the checkpoint and the log")
    parser.add_argument("--workers", type=int, default=2, help="of the loader; another number may resume")
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="die by SIGKILL after this step")
    arguments = parser.parse_args()
    write(arguments.folder / "data")
    train(arguments.folder, arguments.workers, arguments.kill_after)
