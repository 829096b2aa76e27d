"""F12: a cluster lists a remote folder once, and no rank waits for one that is late or dead."""

import json

import pyarrow as pa
import pytest

import ranks
import s3
from objects import parquet_bytes

FILES, ROWS = 20, 3


@pytest.fixture
def listed(s3_port, proxy, tmp_path):
    content = parquet_bytes(pa.table({"id": range(ROWS)}), ROWS)
    s3.put_all(s3_port, "listed", {f"d/p-{number:02d}.parquet": content for number in range(FILES)})

    def listed(count, patience=60.0, late=None, dies=None):
        """The ranks that opened the folder, what they logged, and how many pages of listings the store sent."""
        proxy.reset()
        out = tmp_path / f"{count}-{patience}"
        out.mkdir()
        leg = (count, "s3://listed/d", proxy.options, str(out), patience, late, dies)
        ranks.run("rank_steps.listing", [leg], out)
        found = [json.loads(path.read_text()) for path in out.glob("listed-*.json")]
        assert all(rows == FILES * ROWS for _, rows, _ in found)
        pages = len([one for one in proxy.requests if "list-type" in one.query])
        return sorted(number for number, _, _ in found), [logged for _, _, logged in found], pages

    return listed


def test_F12_sixteen_ranks_list_a_folder_once(listed):
    _, _, alone = listed(1)
    numbers, logged, pages = listed(16)
    assert (numbers, pages) == (list(range(16)), alone)
    assert not any(logged)


def test_F12_a_late_rank_gets_the_listing_and_a_dead_rank_0_is_not_waited_for(listed):
    _, _, alone = listed(1)
    numbers, _, pages = listed(3, late=2)
    assert (len(numbers), pages) == (3, alone)
    numbers, logged, pages = listed(3, patience=0.5, dies=0)
    assert (numbers, pages) == ([1, 2], 2 * alone)
    assert all("Rank 0 has shared no listing for 0.5 s" in lines[0] for lines in logged)
