"""Compressed text files, read by position as if they were not compressed."""

from threading import Lock

import pyarrow as pa

from midepoch.errors import DataFormatError
from midepoch.storage.objects import Bytes, Location, open_bytes, open_file

CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""Codecs of pyarrow, by the bytes that a file begins with."""
SUFFIXES = (".gz", ".zst")
SKIP_BYTES = 1 << 20


def codec_of(head: bytes) -> str | None:
    """The codec of a file that begins with these bytes, or None if it is not compressed as a whole."""
    return next((codec for magic, codec in CODECS.items() if head.startswith(magic)), None)


def compressible(*suffixes: str) -> tuple[str, ...]:
    """The suffixes, and each with that of a compression after it."""
    return suffixes + tuple(suffix + packed for suffix in suffixes for packed in SUFFIXES)


def open_text(path: Location) -> Bytes:
    """The bytes of a text file, decompressed if it is compressed."""
    file = open_bytes(path)
    codec = codec_of(file.read_at(4, 0))
    return file if codec is None else Inflated(path, codec)


class Inflated:
    """The content of a compressed file. It is read forward; a jump back starts over from the beginning."""

    def __init__(self, path: Location, codec: str) -> None:
        self._path, self._codec = path, codec
        self._stream: pa.CompressedInputStream | None = None
        self._position = 0
        self._lock = Lock()

    def read_at(self, nbytes: int, offset: int) -> bytes:
        with self._lock:  # a thread may read ahead while another reads
            try:
                return self._read_at(nbytes, offset)
            except (pa.ArrowException, OSError) as error:
                self._stream = None
                raise DataFormatError(
                    f"{self._path} cannot be decompressed ({self._codec}): {error}. It may be truncated: copy or write "
                    "it again."
                ) from error

    def _read_at(self, nbytes: int, offset: int) -> bytes:
        if self._stream is None or offset < self._position:
            packed = pa.BufferedInputStream(open_file(self._path), SKIP_BYTES)  # unbuffered, the reads would be tiny
            self._stream, self._position = pa.CompressedInputStream(packed, self._codec), 0
        while self._position < offset:
            skipped = len(self._stream.read(min(SKIP_BYTES, offset - self._position)))
            if not skipped:
                return b""
            self._position += skipped
        chunks = []
        while nbytes > 0 and (chunk := self._stream.read(nbytes)):
            chunks.append(chunk)
            nbytes -= len(chunk)
            self._position += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
