"""How far a rank is in its epoch, in steps, over all resumes."""

from contextlib import suppress
from typing import NamedTuple

from midepoch._common.text import count
from midepoch.delivery.passes import Pass
from midepoch.delivery.trace import traced_sessions


class EpochProgress(NamedTuple):
    """How far a rank is in an epoch. Unpack it, or print it."""

    epoch: int
    step: int
    """The steps of this epoch so far, those before a resume included."""
    steps: int | None
    """All steps of this epoch; None if they are not counted, or never end."""

    @property
    def fraction(self) -> float | None:
        """How much of the epoch is done, from 0 to 1; None if that is unknown."""
        return None if self.steps is None else self.step / self.steps if self.steps else 1.0

    def __str__(self) -> str:
        if self.fraction is None or self.steps is None:
            return f"epoch {self.epoch}, {count('step', self.step)}"
        return f"epoch {self.epoch}, step {self.step:,} of {self.steps:,} ({self.fraction:.1%})"


def epoch_progress(run: Pass) -> EpochProgress:
    """How far a pass is. If it is not known what came before a resume, steps count from there."""
    progress, plan = run.progress(), run.plan
    session = progress.session
    step = progress.items
    if not session.counted or session.is_endless:
        return EpochProgress(run.epoch, step, None)
    per_rank = plan.items_per_rank(session)
    left = (session.reader_items(progress.reader) if per_rank is None else per_rank) - step
    with suppress(ValueError):  # its sessions are not known
        last = traced_sessions(run, run.epoch)[-1]
        turns = session.start.turn - last.steps.session.start.turn
        is_padded = per_rank is not None and plan.even == "pad"  # then all ranks take the steps of the longest
        ranks = range(last.ranks) if is_padded else (progress.reader,)
        step += last.first_step + max(last.steps.delivered(rank, turns) for rank in ranks)
    return EpochProgress(run.epoch, step, step + left)
