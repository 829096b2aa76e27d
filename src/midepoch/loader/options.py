"""How a Loader reads its dataset: the dataset's plan with the Loader's batches, lanes and ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from midepoch._common.checks import check_integer, count, log_once
from midepoch.checkpoint.state import State
from midepoch.delivery.plan import Even, Plan
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.stages.batch import Batch, Collate
from midepoch.stages.stage import Stage
from midepoch.stages.transform import ToTensors

if TYPE_CHECKING:
    import torch

    from midepoch.delivery.metrics import OnMetrics

EVEN: tuple[Even, Even] = ("drop", "pad")


class LoaderArguments(TypedDict, total=False):
    """The arguments of a Loader that say nothing of what it yields."""

    num_workers: int
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    multiprocessing_context: Any
    drop_last: bool
    even: Even | Literal["auto"] | None
    worker_init_fn: Callable[[int], None] | None
    timeout: float
    check_ranks: bool
    device: "str | torch.device | None"
    digest: bool
    on_metrics: "OnMetrics | None"
    metrics_every: int


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """What a Loader adds to the plan of its dataset, whatever the number of ranks."""

    batch_size: int | None = None
    drop_last: bool = False
    collate: Callable[..., Any] | None = None
    workers: int = 0
    even: Even | Literal["auto"] | None = "auto"
    batches_per_step: int | None = None
    """The number of batches of all ranks that make one step; None if a step is one batch of each rank."""
    balance: Literal["cost"] | None = None
    digest: bool = False

    def __post_init__(self) -> None:
        if self.even not in (None, "auto", "pad", "drop"):
            raise ValueError(f"even is {self.even!r}; it can be 'auto', 'pad', 'drop' or None.")
        if self.drop_last and self.batch_size is None:
            raise ValueError(
                "drop_last needs a batch_size; for batches of the dataset use .batch(n, drop_last_batch=True)."
            )
        if self.balance not in (None, "cost"):
            raise ValueError(f"balance is {self.balance!r}; it can be 'cost' or None.")
        if self.balance is not None and self.batches_per_step is None:
            raise ValueError("balance='cost' shares the micro-batches of a step: pass global_batch_size too.")
        if self.batches_per_step is not None and self.even is None:
            raise ValueError("global_batch_size needs even='pad' or even='drop', so that the last step is whole.")

    def plan(self, dataset: Plan) -> Plan:
        """The plan of a Loader over a dataset with this plan."""
        even = self._even(dataset)
        pipeline, batching = dataset.pipeline, self._batching()
        if self.collate is None:
            pipeline = with_tensors(pipeline.with_stages(*batching))
        else:  # it gets the items as they are delivered
            pipeline = replace(pipeline, stages=(*pipeline.stages, *batching))
        plan = replace(
            dataset,
            lanes=dataset.lanes or self.batches_per_step or dataset.ranks * max(1, self.workers),
            even=even,
            items_per_step=self._items_per_step(dataset),
            pipeline=replace(pipeline, balanced=self._balanced(dataset), digest=self.digest),
        )
        if even is None and plan.epochs_per_loop != 1 and plan.ranks > 1 and plan.counted:
            _check_even(plan)
        return plan

    def _even(self, dataset: Plan) -> Even | None:
        reason = sentence(dataset.why_not_counted())
        if reason is not None and self.batches_per_step is not None:
            raise ValueError(f"global_batch_size needs a pipeline whose number of items is known. {reason}")
        if self.even == "auto":
            if dataset.ranks > 1 and reason is not None:
                log_once(
                    "Ranks may run out of batches at different steps, and a collective operation of the others would "
                    f"wait for them. {reason} Or iterate over "
                    "midepoch.distributed.in_step(loader), or pass even=None if ranks do not wait for each other."
                )
            in_steps = dataset.ranks > 1 or self.batches_per_step is not None
            return "pad" if in_steps and reason is None else None
        if self.even is not None and reason is not None:
            raise ValueError(
                f"even={self.even!r} needs a pipeline whose number of items is known; no rank knows how many the "
                f"others have. {reason} Or pass even='auto' and iterate over midepoch.distributed.in_step(loader)."
            )
        return self.even

    def _items_per_step(self, dataset: Plan) -> int:
        if self.batches_per_step is None:
            return 1
        if dataset.mode == "file":
            raise ValueError(
                "global_batch_size with shard(mode='file') is not possible: ranks have other rows on each number of "
                "ranks. Use mode='example'."
            )
        if self.batches_per_step % dataset.ranks:
            raise ValueError(
                f"A global batch has {count('micro-batch', self.batches_per_step, 'micro-batches')}, which "
                f"{dataset.ranks} ranks cannot share evenly. Choose a number of ranks that divides it, or another "
                "global_batch_size or micro_batch_size."
            )
        return self.batches_per_step // dataset.ranks

    def _balanced(self, dataset: Plan) -> int | None:
        if self.balance is None:
            return None
        if not _is_packed(dataset.pipeline):
            raise ValueError(
                "balance='cost' needs the lengths of documents, which are known only of a dataset that is packed: use "
                "dataset.pack(...), before or after mixing."
            )
        return self.batches_per_step

    def _batching(self) -> tuple[Stage, ...]:
        if self.batch_size is not None:
            return (Batch(size=self.batch_size, drop_last=self.drop_last, collate=self.collate),)
        return () if self.collate is None else (Collate(function=self.collate),)


def with_tensors(pipeline: Pipeline) -> Pipeline:
    """A pipeline whose batches and packs have tensors, unless the user chose a form. No fingerprint knows of it."""
    if pipeline.chooses_form:
        return pipeline
    stages = pipeline.stages
    for number, stage in reversed(list(enumerate(stages))):
        if isinstance(stage, Batch):  # the types of columns are those of the files, if no function was called
            return replace(
                pipeline, stages=(*stages[:number], replace(stage, default_form="torch"), *stages[number + 1 :])
            )
        if stage.functions:
            break
    if pipeline.item_spec == ("python", False):  # single rows
        return pipeline
    return replace(pipeline, stages=(*stages, ToTensors(form="torch")))


def _is_packed(pipeline: Pipeline) -> bool:
    """True if the items are packs, or batches of packs."""
    if any(stage.length_column is not None for stage in pipeline.stages):
        return True
    return isinstance(pipeline.source, Mixture) and all(map(_is_packed, pipeline.source.parts))


def micro_batches(
    batch_size: int | None, global_batch_size: int | None, micro_batch_size: int | None
) -> tuple[int | None, int | None]:
    """The batch size, and the number of batches of all ranks in a step, of the sizes that a Loader is given."""
    if global_batch_size is None and micro_batch_size is None:
        return batch_size, None
    if global_batch_size is None or micro_batch_size is None:
        raise ValueError("Pass both global_batch_size and micro_batch_size, or neither.")
    if batch_size is not None:
        raise ValueError("Pass batch_size, or global_batch_size and micro_batch_size, not both.")
    whole = check_integer("global_batch_size", global_batch_size, least=1)
    micro = check_integer("micro_batch_size", micro_batch_size, least=1)
    if whole % micro:
        raise ValueError(f"global_batch_size is {whole}, which is no multiple of micro_batch_size, {micro}.")
    return micro, whole // micro


def sentence(reason: str | None) -> str | None:
    """A reason, written as a sentence."""
    return None if reason is None else f"{reason[0].upper()}{reason[1:]}."


def _check_even(plan: Plan) -> None:
    """Raise if ranks may begin the next epoch at different steps: then no rank's state would hold for all ranks."""
    session = plan.begin(State()).session
    if session.is_endless:
        return
    numbers = "ranks may have different numbers of batches in an epoch"
    if plan.pipeline.uniform:
        least, most = (replace(plan, even=even).items_per_rank(session) or 0 for even in EVEN)
        if least == most:
            return
        numbers = f"some ranks have {count('batch', least, 'batches')} in an epoch and some {most:,}"
    raise ValueError(
        f"repeat() over {plan.ranks} ranks needs even='pad' or even='drop': {numbers}, and would begin the next epoch "
        "at different steps."
    )
