"""Files of other users are not used."""

import os
import stat

import pytest

from midepoch._common import trust
from midepoch._common.files import exclusive_lock, make_private_folder, write_privately
from midepoch._common.trust import UntrustedFileError, map_trusted, read_trusted

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


def test_an_existing_folder_stays_as_it_is(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    make_private_folder(tmp_path / "open")
    assert mode_of(tmp_path / "open") == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_folder(tmp_path / "file" / "below")


@pytest.mark.parametrize("read", [read_trusted, map_trusted])
def test_own_files_are_read(path, read):
    assert bytes(read(path)) == b"content"


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
    monkeypatch.setattr(trust, "_shared", set())
    assert not trust.is_shared(tmp_path / "a")
    trust.trust_folder(tmp_path / "a")
    assert [trust.is_shared(tmp_path / name) for name in ("a", "a/b/c", "ab", ".")] == [True, True, False, False]
