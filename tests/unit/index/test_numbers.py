import pickle

import pytest

from midepoch.formats import Block
from midepoch.index.numbers import BLOCK_ROWS, NumberIndex


@pytest.mark.parametrize("rows", [0, 1, BLOCK_ROWS, 2 * BLOCK_ROWS + 1])
def test_all_numbers_are_there_once(rows):
    index = pickle.loads(pickle.dumps(NumberIndex(rows, "list", "n")))
    assert index.view.rows == rows
    reader = index.open(0, index.schema(None))
    blocks = [index.view.block(number)[1] for number in range(len(index.view.block_rows))]
    assert [n for block in blocks for n in reader.read(block)["n"].to_pylist()] == list(range(rows))


def test_a_block_is_a_run_of_numbers():
    reader = NumberIndex(9, "list", "n").open(0, NumberIndex(9, "list", "n").schema(None))
    assert reader.read(Block(0, 4, 0, 3)).to_pydict() == {"n": [4, 5, 6]}
