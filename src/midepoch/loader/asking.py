"""What a Loader can be asked about its run: how far it is, how fast, and which rows come when."""

import pyarrow as pa

from midepoch.dataset.dataset import Item
from midepoch.delivery.digests import check_digest, digest_of
from midepoch.delivery.metrics import Meter
from midepoch.delivery.progress import AnyProgress
from midepoch.delivery.summary import describe_plan
from midepoch.delivery.trace import EpochProgress, epoch_progress, find, trace
from midepoch.loader.position import PositionedLoader


class AskedLoader(PositionedLoader[Item]):
    """A loader that answers. Nothing here moves its position."""

    _meter: Meter | None = None

    def __repr__(self) -> str:
        if "_plan" not in vars(self):  # its constructor has raised, and a debugger shows it
            return object.__repr__(self)
        options = {
            "num_workers": self.num_workers,
            "even": self._plan.even,
            "persistent_workers": self.persistent_workers,
        }
        return describe_plan("midepoch.Loader", self._plan, epoch=self.epoch, options=options)

    def __len__(self) -> int:
        """The number of batches that this rank gets in a loop, known without reading.

        It is that of an epoch from its beginning, as the dataset is now. After a resume, also with rows that
        :meth:`midepoch.Dataset.without` has taken out of an epoch under way, :attr:`batches_left` is what is left.
        """
        return self._plan.length(self._start_point.epoch)

    def __bool__(self) -> bool:
        """True, even if the length is unknown."""
        return True

    @property
    def accumulation(self) -> int:
        """The number of batches that this rank gets in a step: more than one only with ``global_batch_size``."""
        return self._plan.items_per_step

    @property
    def batches_left(self) -> int | None:
        """The number of batches from here to the end of the epoch, known without reading; None if it is not known."""
        progress = self._start_point.latest(self._plan).progress()
        session = progress.session
        if not session.counted or session.is_endless:
            return None
        items = self._plan.items_per_rank(session)
        return (session.reader_items(progress.reader) if items is None else items) - progress.items

    def progress(self) -> EpochProgress:
        """How far this rank is in its epoch: ``epoch``, ``step`` and ``steps``, which count those before a resume too.

            print(loader.progress())  # epoch 0, step 1 of 15 (6.7%)

        done = loader.progress()
        for batch in tqdm(loader, initial=done.step, total=done.steps): ...
        """
        return epoch_progress(self._start_point.latest(self._plan))

    def metrics(self) -> dict[str, float]:
        """How the last loop that was started goes: plain numbers by name, to log. Empty before any.

            writer.add_scalar("data/waited_share", loader.metrics()["waited_share"], step)

        ``waited`` are the seconds in which the loop waited for batches, ``waited_share`` is their share of all
        ``seconds``. ``read``, ``processed`` and ``transported`` say what took them: reading rows, making items of rows
        by functions, batches and packs, and sending items from workers. They are sums over all workers of this rank;
        ``received`` are the seconds of ``waited`` in which this process made items of what had arrived from workers,
        and ``workers_idle`` those in which workers were as far ahead as they may be. ``functions`` are the
        seconds in your functions, ``fetched`` and ``decoded`` those of requests to a store and of decoding, in all
        threads. ``rows_per_second`` counts whole batches, of this rank, where batches have a fixed number of rows;
        ``rows_read`` all rows that were read, also ahead. Packs have ``tokens_per_second`` and ``pack_fill``, the share
        of their places that are not padding, mixtures the share of each part, as ``share_name``. ``cache_hits``,
        ``cache_misses`` and ``retries`` are those of object stores.

        A Loader with ``on_metrics`` calls that function with the metrics after each ``metrics_every`` batches, and at
        the end of a loop.
        """
        return {} if self._meter is None else self._meter.metrics()

    def digest(self) -> int:
        """The digest of what this rank delivered of the epoch: of the one under way, or of the one just finished.

            loader = Loader(dataset, batch_size=64, digest=True)
            for batch in loader: ...
            assert loader.digest() == dataset.digest()

        It is the sum, modulo 2**64, of a hash of each row, or, after ``pack``, of each pack. The order makes no
        difference, and the digests of all ranks add up to that of the epoch: the one of rank 0 has what all ranks
        delivered before a resume. Raises if the Loader keeps none, or it is not known.
        """
        return digest_of(self._digested())

    def check_digest(self) -> int:
        """The same, if it is the digest of the rows that should have been delivered; if not, the lanes that differ.

            for batch in loader: ...
            loader.check_digest()

        It may be called at any step. What should have been delivered follows from the order of the epoch by arithmetic,
        so nothing is read, and each rank checks its own part and what all had delivered when it resumed. Raises
        :class:`~midepoch.DigestMismatchError` if rows were lost, repeated or exchanged, and ``ValueError`` if the
        items are not counted.
        """
        return check_digest(self._digested())

    def _digested(self) -> AnyProgress:
        """The progress in the epoch under way, or in the one that the last loop has finished."""
        run = self._start_point.latest(self._plan)
        if self._finished_run is not None and run.state().lanes is None:
            return self._finished_run.in_last_epoch().progress()
        return run.progress()

    def trace(self, step: int, *, epoch: int | None = None, ranks: int | None = None) -> pa.Table:
        """The rows of a step of an epoch on all ranks, as an Arrow table with one line a row. Nothing is read.

            print(loader.trace(41_200).to_pandas())

        ``step`` counts from the beginning of the epoch, over all resumes. The columns are epoch, step, rank, item (its
        number in the epoch), place (in the batch), document (in the pack), part (of a mixture), file, row, and start
        and stop (which tokens of the row are in the pack). ``epoch`` counts from 0 and is by default the present one.
        With ``ranks``, the epoch is traced as if that number of ranks read it from its beginning. A batch that only
        keeps ranks even has no line.

        Raises if items are not counted: call ``survey()`` first.
        """
        return trace(self._start_point.latest(self._plan), step, epoch=epoch, ranks=ranks)

    def find(self, file: str, row: int, *, epoch: int | None = None, ranks: int | None = None) -> pa.Table:
        """When a row comes: the lines of :meth:`trace`, of any step of an epoch, that have this row of a file.

            loader.find("part-0007.parquet", 1234)

        ``file`` is the name of a file, its path, or the end of that; ``row`` counts from 0 in the file. A row that is
        cut into several packs has several lines. A row that no item has, because a filter drops it, has none.
        ``epoch`` and ``ranks`` are those of :meth:`trace`. Raises if the dataset has no such file or row, or
        if items are not counted.
        """
        return find(self._start_point.latest(self._plan), file, row, epoch=epoch, ranks=ranks)
