"""Files that rows name. Rows are not trusted: they may name only what the user has allowed."""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from midepoch._common.checks import Size, check_integer, parse_size
from midepoch._common.files import OPEN_FILES
from midepoch.errors import MidepochError, NoDataError, NotAllowedError
from midepoch.storage.fsspec import AllowedRedirects
from midepoch.storage.fsspec import origin_of as _origin
from midepoch.storage.objects import StoredFile
from midepoch.storage.store import Store
from midepoch.storage.urls import check_plain, is_url, local_path

MAX_FILE_BYTES = "1GiB"
Answer = TypeVar("Answer")


class NamedFiles:
    """Reads whole files that rows name, with one client for each store and process.

    ``data_folder`` is a path or the URL of a store. Relative names are below it. A path must lie in it after links are
    resolved, and must be a regular file. Other URLs must be of an origin in ``allow_urls``, such as
    "https://example.com" or "s3://bucket". ``storage_options`` go only to the origins that they were given for: those
    of the URLs in ``options_for`` and of the folder. A file has at most ``max_file_bytes``.
    """

    def __init__(
        self,
        data_folder: str | os.PathLike[str] | None = None,
        *,
        allow_urls: Iterable[str] | str = (),
        max_file_bytes: Size = MAX_FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        options_for: Iterable[str] = (),
    ) -> None:
        folder = None if data_folder is None else os.fspath(data_folder)
        if folder is not None:
            folder = local_path(folder) or folder
            if is_url(folder):
                check_plain(folder)
            folder = folder.rstrip("/") if is_url(folder) else os.path.realpath(os.path.expanduser(folder))
        self._folder = folder
        self._allowed = frozenset(map(_checked_origin, [allow_urls] if isinstance(allow_urls, str) else allow_urls))
        self._limit = check_integer("max_file_bytes", parse_size("max_file_bytes", max_file_bytes), least=1)
        self._options = storage_options
        self._options_for = frozenset(_origin(url) for url in (*options_for, folder or "") if is_url(url))
        folders = [_origin(folder)] if folder is not None and is_url(folder) else []
        self._redirects = AllowedRedirects([*self._allowed, *folders])
        self._stores: dict[str, Store] = {}

    def __repr__(self) -> str:
        return "NamedFiles()"

    def read(self, name: str | os.PathLike[str]) -> bytes:
        """All bytes of a file that a row names."""
        path, url = self._located(os.fspath(name))
        if url is None:
            with self._open_path(path) as file:
                return file.read(self._limit)
        return self._ask(url, lambda store: store.read(url, lambda size: self._check_size(url, size)))

    def open(self, name: str | os.PathLike[str]) -> Any:
        """A file that a row names, to read and seek in. Of an object in a store only what is read is fetched."""
        path, url = self._located(os.fspath(name))
        if url is None:
            return self._open_path(path)
        stored = self._ask(url, lambda store: StoredFile(store, url))
        self._check_size(url, self._ask(url, lambda _: stored.size))
        return stored.open()

    def _located(self, text: str) -> tuple[str, str | None]:
        """The path of a file, or its URL. Raises if rows may not name it."""
        path = local_path(text)
        if path is None and is_url(text):
            return "", self._checked_url(text)
        path = text if path is None else path
        is_stored = self._folder is not None and is_url(self._folder)
        return ("", self._url_below(path)) if is_stored else (path, None)

    def _open_path(self, name: str) -> BinaryIO:
        if self._folder is None:
            raise NotAllowedError(
                f"A row names the file {name!r}. Rows may name only files in data_folder, and none was given. Pass "
                "data_folder=, the folder that the files are in."
            )
        try:
            path = os.path.realpath(os.path.join(self._folder, name))
        except ValueError:  # a zero byte, or half of a surrogate pair
            raise NotAllowedError(f"A row names the file {name!r}, which no file can be named.") from None
        if os.path.commonpath([self._folder, path]) != self._folder:
            raise NotAllowedError(
                f"A row names the file {name!r}, which is {path}, outside of data_folder ({self._folder}). If rows may "
                "name it, pass a data_folder= that contains it."
            )
        try:
            return self._open_regular(path)
        except MidepochError:
            raise
        except OSError as error:
            raise NoDataError(f"{path} cannot be read: {error.strerror or error}.") from error

    def _open_regular(self, path: str) -> BinaryIO:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._check_opened(descriptor, path)
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise NotAllowedError(f"A row names {path}, which is a folder, a device or a pipe, not a regular file.")
            self._check_size(path, found.st_size)
            return open(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def _check_opened(self, descriptor: int, path: str) -> None:
        """Raise if a folder was replaced by a link between the check of the path and now."""
        if os.path.isdir(OPEN_FILES):
            opened = os.readlink(f"{OPEN_FILES}/{descriptor}").removesuffix(" (deleted)")
            if os.path.commonpath([self._folder or "", opened]) != self._folder:
                raise NotAllowedError(f"A row names {path}, which became {opened} while it was opened.")

    def _url_below(self, name: str) -> str:
        """The URL of a name below a folder that is a URL."""
        if name.startswith("/") or ".." in unquote(name).replace("\\", "/").split("/"):
            raise NotAllowedError(
                f"A row names the file {name!r}, which is not below data_folder ({self._folder}). Pass a data_folder= "
                "that contains it."
            )
        return f"{self._folder}/{name}"

    def _checked_url(self, url: str) -> str:
        check_plain(url)
        origin = _origin(url)
        is_below = self._folder is not None and is_url(self._folder) and url.startswith(f"{self._folder}/")
        if is_below and origin not in self._allowed:
            return self._url_below(url.removeprefix(f"{self._folder}/"))
        if origin not in self._allowed:
            raise NotAllowedError(
                f"A row names the URL {url}. Rows may name only URLs of the origins in allow_urls. If this one is "
                f"trusted, pass allow_urls=[{origin!r}]."
            )
        return url

    def _ask(self, url: str, action: Callable[[Store], Answer]) -> Answer:
        """What the store of a URL answers."""
        origin, path = _origin(url), urlsplit(url).path
        if not path.strip("/") and not urlsplit(url).netloc:
            raise NoDataError(f"{url} names no object; write {url.partition(':')[0]}://bucket/name.")
        store = self._stores.get(origin)
        if store is None:
            options = self._options if origin in self._options_for else None
            store = self._stores.setdefault(origin, Store(url, self._limited(options, url)))
        return action(store)

    def _limited(self, options: Mapping[str, Any] | None, url: str) -> Mapping[str, Any] | None:
        """The options of a store whose servers may redirect only to allowed origins."""
        if urlsplit(url).scheme.lower() not in ("http", "https"):
            return options
        return {**(options or {}), AllowedRedirects.OPTION: self._redirects}

    def _check_size(self, name: str, size: int) -> None:
        if size > self._limit:
            raise NotAllowedError(
                f"{name} has {size:,} bytes, more than max_file_bytes ({self._limit:,}). If it may, pass a larger "
                "max_file_bytes."
            )


def _checked_origin(url: Any) -> str:
    if isinstance(url, str) and is_url(url):
        check_plain(url)
    if not isinstance(url, str) or not is_url(url) or urlsplit(url).path.strip("/") or not urlsplit(url).netloc:
        raise ValueError(
            f"allow_urls has {url!r}; each must be a scheme and a host or bucket, such as 'https://example.com' or "
            "'s3://bucket'."
        )
    return _origin(url)
