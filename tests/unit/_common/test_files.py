"""Shared files: whole or not there, built by one process, and checked when read."""

import os
import stat
import subprocess
import sys

import pytest

from midepoch._common import files as common_files
from midepoch._common.files import (
    TRAILER,
    UntrustedFileError,
    exclusive_lock,
    framed,
    map_trusted,
    read_trusted,
    unframed,
    write_privately,
)

MAGIC = b"TST1"


@pytest.mark.parametrize("body", [b"", b"a", bytes(range(256)) * 40])
def test_a_frame_returns_its_body(body):
    content = framed(body, MAGIC)
    found, checksum = unframed(content, MAGIC)
    assert bytes(found) == body
    assert unframed(memoryview(content), MAGIC) == (found, checksum)
    assert len(content) == len(body) + TRAILER.size


def test_no_changed_byte_passes():
    content = framed(b"some body", MAGIC)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        with pytest.raises(ValueError, match=r"damaged|checksum"):
            unframed(changed, MAGIC)


def test_a_part_of_the_body_does_not_pass_for_the_body():
    """A checksum of zeros is the same for some lengths of them; the length is stored too."""
    content = framed(bytes(64), MAGIC)
    with pytest.raises(ValueError, match="checksum"):
        unframed(content[8:], MAGIC)


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_privately(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_privately(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_another_process_cannot_take_a_lock_that_is_held(tmp_path):
    lock = tmp_path / "folder" / "lock"
    attempt = f"import fcntl; fcntl.flock(open({str(lock)!r}, 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"

    def another_takes_it():
        return subprocess.run([sys.executable, "-c", attempt], capture_output=True, check=False).returncode == 0

    with exclusive_lock(lock):
        assert not another_takes_it()
    assert another_takes_it()


def test_a_lock_that_is_something_else_is_not_touched_and_nobody_waits(tmp_path):
    victim, link, pipe = tmp_path / "victim", tmp_path / "link", tmp_path / "pipe"
    victim.write_text("precious")
    link.symlink_to(victim)
    os.mkfifo(pipe)
    for lock in (link, pipe, tmp_path):
        with exclusive_lock(lock):
            pass
    missing = tmp_path / "missing"
    (tmp_path / "dangling").symlink_to(missing)
    with exclusive_lock(tmp_path / "dangling"):
        assert not missing.exists(), "a link is not followed, not even to make what it names"
    with exclusive_lock(victim):
        assert victim.read_text() == "precious"
    with exclusive_lock(tmp_path / "new"):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give files to others")


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path):
    write_privately(tmp_path / "new" / "folder" / "file", b"content")
    return tmp_path / "new" / "folder" / "file"


def test_files_and_folders_are_for_their_owner_alone(path):
    assert [mode_of(one) for one in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o700]
    with exclusive_lock(path.with_name("lock")):
        assert mode_of(path.with_name("lock")) == 0o600
    assert not list(path.parent.glob(".*"))


def test_users_who_trust_each_other_have_the_usual_permissions(tmp_path, monkeypatch):
    monkeypatch.setenv("MIDEPOCH_TRUST_SHARED", "1")
    mask = os.umask(0o002)
    try:
        write_privately(tmp_path / "shared" / "file", b"content")
    finally:
        os.umask(mask)
    assert [mode_of(tmp_path / name) for name in ("shared", "shared/file")] == [0o775, 0o664]


@needs_root
@pytest.mark.parametrize("read", [read_trusted, map_trusted])
def test_files_of_another_user_are_refused_unless_all_are_trusted(path, read, monkeypatch):
    os.chown(path, 12345, 12345)
    with pytest.raises(UntrustedFileError, match=r"another user, number 12345\. .* set MIDEPOCH_TRUST_SHARED=1"):
        read(path)
    monkeypatch.setenv("MIDEPOCH_TRUST_SHARED", "1")
    assert bytes(read(path)) == b"content"


@pytest.mark.parametrize("read", [read_trusted, map_trusted])
def test_files_that_all_can_write_to_are_refused(path, read):
    path.chmod(0o606)
    with pytest.raises(UntrustedFileError, match="every user can write to it"):
        read(path)


@pytest.mark.parametrize("read", [read_trusted, map_trusted])
def test_links_and_pipes_are_not_read(path, read):
    link, pipe = path.with_name("link"), path.with_name("pipe")
    link.symlink_to(path)
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="symbolic link"):
        read(link)
    with pytest.raises(UntrustedFileError, match="pipe is no regular file"):
        read(pipe)


def test_a_folder_is_trusted_with_all_below_it(tmp_path, monkeypatch):
    monkeypatch.setattr(common_files, "_shared", set())
    assert not common_files.is_shared(tmp_path / "a")
    common_files.trust_folder(tmp_path / "a")
    assert [common_files.is_shared(tmp_path / name) for name in ("a", "a/b/c", "ab", ".")] == [True, True, False, False]
