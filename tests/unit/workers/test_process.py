"""What a worker runs: whose turns it makes."""

import pytest

from midepoch.checkpoint.lanes import LanePosition
from midepoch.delivery.uniform import UniformSession
from midepoch.workers.claims import ClaimTable, SharedTurns
from midepoch.workers.process import WorkerSettings, _claims
from midepoch.workers.taking import OwnTurns
from simulation import MemoryWorld


@pytest.mark.parametrize(
    ("ahead", "decodes", "steal", "kind"),
    [
        ((), False, True, SharedTurns),
        ((), False, False, OwnTurns),
        ((), True, True, OwnTurns),
        ((2,), False, True, SharedTurns),
    ],
)
def test_turns_are_stolen_only_where_they_can_be_begun_at_no_cost(ahead, decodes, steal, kind):
    world, table = MemoryWorld(sizes=(9,)), ClaimTable(2)
    settings = WorkerSettings(
        plan=None,
        number=1,
        workers=2,
        seed=0,
        ahead=None,
        init=None,
        copies_tensors=False,
        claims=table if steal else None,
    )
    session = UniformSession(world.pipeline(decodes=decodes), world.start([LanePosition((1,), ahead)], turn=1), 1)
    assert isinstance(_claims(settings, session, 1), kind)
    assert all(opened.closed for opened in session.pipeline.source.opened)
    table.free()
