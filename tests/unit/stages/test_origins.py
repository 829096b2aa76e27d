"""What outputs are made of, as stages note it."""

import numpy as np
import pytest

from midepoch.stages.origins import Origins
from midepoch.stages.traced import WHOLE


def numbers(*values):
    return np.array(values, np.int64)


def test_the_inputs_of_packs_have_their_places_and_tokens():
    origins = Origins()
    origins.note(numbers(7, 8), numbers(0, 2, 3), numbers(1, 2, 3), starts=numbers(0, 4, 0), stops=numbers(4, 9, 6))
    pieces = origins.of(numbers(8, 7))
    assert pieces.outputs.tolist() == [0, 1, 1]
    assert pieces.places.tolist() == [0, 0, 1]
    assert pieces.inputs.tolist() == [3, 1, 2]
    assert list(zip(pieces.starts.tolist(), pieces.stops.tolist(), strict=True)) == [(0, 6), (0, 4), (4, 9)]


def test_outputs_of_a_group_are_made_of_all_its_inputs():
    origins = Origins()
    origins.note_group(numbers(7, 8), numbers(1, 2, 3))
    origins.note_group(numbers(11), numbers(7))
    assert origins.of(numbers(8)).inputs.tolist() == [1, 2, 3]
    assert origins.of(numbers(8, 11)).inputs.tolist() == [1, 2, 3, 7]
    assert set(origins.of(numbers(8)).starts.tolist()) == {WHOLE}


def test_what_was_not_noted_is_not_known():
    with pytest.raises(KeyError):
        Origins().of(numbers(1))
    assert Origins().of(numbers()).inputs.tolist() == []
