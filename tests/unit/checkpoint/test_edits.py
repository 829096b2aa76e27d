"""The edits of an epoch, and of the parts of a mixture."""

import json

import pytest

from midepoch.checkpoint.state import read_edits, write_edits


@pytest.mark.parametrize("edits", [0, 3, (1, 0), (0, (2, 1))])
def test_edits_are_written_as_plain_values_and_read_back(edits):
    assert read_edits(json.loads(json.dumps(write_edits(edits)))) == edits


@pytest.mark.parametrize("value", [-1, 1 << 11, "1", True, None, [], [0, 0], [1, -1], [[]], 1.0])
def test_edits_that_no_run_has_written_are_refused(value):
    with pytest.raises(ValueError, match="expected at most 1024 edits"):
        read_edits(value)


def test_a_state_that_is_nested_without_end_is_refused():
    value = 1
    for _ in range(40):
        value = [value]
    with pytest.raises(ValueError, match="expected at most"):
        read_edits(value)
