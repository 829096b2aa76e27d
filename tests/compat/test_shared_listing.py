"""F12: a cluster lists a remote folder once, and no rank waits for one that is late or dead."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import s3
from objects import parquet_bytes

STEPS = Path(__file__).parent.parent / "listing_steps.py"
FILES, ROWS = 20, 3


@pytest.fixture
def ranks(s3_port, proxy, tmp_path):
    content = parquet_bytes(pa.table({"id": range(ROWS)}), ROWS)
    s3.put_all(s3_port, "listed", {f"d/p-{number:02d}.parquet": content for number in range(FILES)})

    def ranks(number, patience=60.0, **options):
        """What each rank found and logged, and how often the store was asked for a page of a listing."""
        options |= {"url": "s3://listed/d", "storage": proxy.options, "index": str(tmp_path)}
        proxy.reset()
        command = [sys.executable, str(STEPS), json.dumps({"ranks": number, "patience": patience, **options})]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
        assert all(rows == FILES * ROWS for _, rows, _ in found), ended.stderr
        return sorted(found), len([one for one in proxy.requests if "list-type" in one.query])

    return ranks


def test_F12_sixteen_ranks_list_a_folder_once(ranks):
    _, alone = ranks(1)
    found, pages = ranks(16)
    assert [number for number, *_ in found] == list(range(16))
    assert pages == alone
    assert not any(logged for _, _, logged in found)


def test_F12_a_late_rank_gets_the_listing_and_a_dead_rank_0_is_not_waited_for(ranks):
    _, alone = ranks(1)
    found, pages = ranks(3, late={"2": 3})
    assert (len(found), pages) == (3, alone)
    found, pages = ranks(3, patience=0.5, dies=0)
    assert [number for number, *_ in found] == [1, 2]
    assert pages == 2 * alone
    assert all("Rank 0 has shared no listing for 0.5 s" in logged[0] for _, _, logged in found)
