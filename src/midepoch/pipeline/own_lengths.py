"""The lengths that ``pack`` finds by itself: those of lists in local, uncompressed Arrow files.

Only the offsets of the lists are read, which is cheap enough to do without being asked. All other surveys are made
when the user asks for them.
"""

import errno
import logging
from dataclasses import replace

import pyarrow as pa

from midepoch._common.world import torch_worker
from midepoch.errors import MidepochError
from midepoch.index.survey import Survey
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.survey import Counting, packed_part
from midepoch.sources.files import FileRows

log = logging.getLogger("midepoch")

READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


def with_own_lengths(pipeline: Pipeline) -> Pipeline:
    """The pipeline, whose last stage is a pack, with the survey that it makes when its items are first counted.

    It is unchanged if the lengths are not those of lists in local, uncompressed Arrow files.
    """
    if isinstance(pipeline.source, Mixture):
        return _with_lengths_of_parts(pipeline, pipeline.source)
    source, before = pipeline.source, replace(pipeline, stages=pipeline.stages[:-1])
    if not isinstance(source, FileRows) or source.index.store is not None or not all(source.index.view.divisible):
        return pipeline
    if source.where is not None or before.schema is None or before.functions or before.first_resizing is not None:
        return pipeline
    counting = Counting.of(pipeline)
    return pipeline if counting is None else replace(pipeline, own_lengths=OwnLengths(counting))


def _with_lengths_of_parts(pipeline: Pipeline, mixture: Mixture) -> Pipeline:
    """The same for a mixture, if the lengths of all its parts can be found. Functions after it make other lengths."""
    if any(stage.needs_survey for stage in pipeline.stages[:-1]):
        return pipeline
    packed = [packed_part(part, pipeline.stages) for part in mixture.parts]
    known = [with_own_lengths(part) for part in packed if part is not None]
    if any(new is old for new, old in zip(known, packed, strict=True)):
        return pipeline
    parts = tuple(
        replace(part, source=new.source, own_lengths=new.own_lengths)
        for part, new in zip(mixture.parts, known, strict=True)
    )
    return replace(pipeline, source=replace(mixture, parts=parts))


class OwnLengths:
    """A survey that is found or made when it is first asked for. A pickle holds what came of it, or that nothing did.

    The pipelines and copies that share it agree whether there is a survey. If it cannot be made, there is none, and
    the reason is logged.
    """

    def __init__(self, counting: Counting) -> None:
        self._counting = counting
        self.is_known = False
        self._survey: Survey | None = None

    def survey(self) -> Survey | None:
        """The survey; None if it cannot be made."""
        if not self.is_known:
            self._survey = self._find()
            self.is_known = True
        return self._survey

    def _find(self) -> Survey | None:
        try:
            return self._counting.survey(None, None, None)
        except (MidepochError, OSError, ValueError, pa.ArrowException) as error:
            if torch_worker() is not None and getattr(error, "errno", None) not in READ_ONLY:
                raise  # other workers may succeed, and then would take other items
            log.warning(
                "%s: pack is not counted, because the lengths of the rows cannot be kept (%s). To choose another "
                "folder, call .survey(folder=...) after pack.",
                self._counting.source.label,
                error,
            )
            return None
