"""The same kills and resumes with ``datasets`` and torchdata's StatefulDataLoader, as their documentation shows them.

    python examples/demo/stateful.py FOLDER RUN --kills 0.3 0.7 --buffer 100

The loop only reads: what is measured is which rows come. Two processes with two workers each are killed and started
again, on the same numbers of both. What every step received is in ``FOLDER/RUN/session-N/rank-RANK.jsonl``. At the end
the last checkpoint is given to one process with three workers, and what that says is in ``FOLDER/RUN/other-workers``.
"""

import argparse
import json
import os
import signal
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import StatefulDataLoader

RANKS, WORKERS, BATCH, SAVE_EVERY = 2, 2, 8, 10


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One rank of the run."""

    folder: Path
    run: Path
    rank: int
    buffer: int

    @property
    def checkpoint(self) -> Path:
        """The rank's own: such a state is that of one rank."""
        return self.run / f"checkpoint-{self.rank}.pt"

    def loader(self, *, ranks: int = RANKS, workers: int = WORKERS) -> StatefulDataLoader:
        """As in the documentation: stream the files, shuffle with a buffer, split by node, load with workers."""
        files = str(self.folder / "corpus" / "*.parquet")
        rows = load_dataset("parquet", data_files=files, split="train", streaming=True)
        if self.buffer:
            # One shard at a time: with more, the default, datasets 5.2 cannot load the state of several workers.
            rows = rows.shuffle(seed=7, buffer_size=self.buffer, max_buffer_input_shards=1)
        rows = split_dataset_by_node(rows, rank=self.rank, world_size=ranks)
        return StatefulDataLoader(rows, batch_size=BATCH, num_workers=workers)

    def read(self, session: Path, kill_at: int | None) -> None:
        """Read to the end of the epoch, from the checkpoint if there is one, or until SIGKILL."""
        loader, step = self.loader(), 1
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint, weights_only=True)
            loader.load_state_dict(saved["loader"])
            step = saved["step"] + 1
        with (session / f"rank-{self.rank}.jsonl").open("w", buffering=1) as log:
            for batch in loader:
                log.write(json.dumps({"step": step, "rows": batch["id"].tolist()}) + "\n")
                if step % SAVE_EVERY == 0:
                    temporary = self.checkpoint.with_suffix(".tmp")
                    torch.save({"step": step, "loader": loader.state_dict()}, temporary)
                    temporary.replace(self.checkpoint)
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                step += 1

    def try_other_workers(self) -> None:
        """Give the checkpoint to one process with three workers, and write down what comes of it."""
        loader = self.loader(ranks=1, workers=3)
        try:
            loader.load_state_dict(torch.load(self.checkpoint, weights_only=True)["loader"])
            said = f"accepted, {sum(len(batch['id']) for batch in loader)} rows"
        except Exception as error:
            said = f"refused, {type(error).__name__}: {error}".rstrip(": ")
        (self.run / "other-workers").write_text(said)


def main(options: argparse.Namespace) -> None:
    """Run all sessions, each in processes of its own."""
    run = options.folder / options.run
    readers = [Reader(folder=options.folder, run=run, rank=rank, buffer=options.buffer) for rank in range(RANKS)]
    steps = options.rows / (RANKS * BATCH)
    for number, part in enumerate([*options.kills, None]):
        session = run / f"session-{number}"
        session.mkdir(parents=True)
        kill_at = None if part is None else round(part * steps)
        started = [FORK.Process(target=reader.read, args=(session, kill_at)) for reader in readers]
        for process in started:
            process.start()
        for process in started:
            process.join()
        if any(process.exitcode not in (0, -signal.SIGKILL) for process in started):
            raise SystemExit(1)
    last = FORK.Process(target=readers[0].try_other_workers)
    last.start()
    last.join()


FORK = get_context("fork")  # importing torch takes longer than reading, so it is done once
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="has the corpus")
    parser.add_argument("run", help="the folder of the logs and checkpoints, inside that folder")
    parser.add_argument("--rows", type=int, required=True, help="of the corpus")
    parser.add_argument("--kills", type=float, nargs="*", default=[], metavar="PART", help="parts of the epoch")
    parser.add_argument("--buffer", type=int, default=0, help="of the shuffle; 0 reads in the order of the files")
    main(parser.parse_args())
