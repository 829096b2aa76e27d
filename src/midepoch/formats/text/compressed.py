"""Compressed text: a file that can only be read from its start, read as if it were not compressed."""

from threading import Lock

import pyarrow as pa

from midepoch.errors import DataFormatError
from midepoch.storage.location import Bytes, Location, open_bytes, open_file

CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
SKIP_BYTES = 1 << 20


def codec_of(head: bytes) -> str | None:
    """How a file that begins with these bytes is compressed as a whole, or None."""
    return next((codec for magic, codec in CODECS.items() if head.startswith(magic)), None)


def open_text(path: Location) -> Bytes:
    """The bytes of a text file, decompressed where it is compressed."""
    file = open_bytes(path)
    codec = codec_of(file.read_at(4, 0))
    return file if codec is None else Inflated(path, codec)


class Inflated:
    """What a compressed file holds. It is read forward; a jump back starts over from the beginning."""

    def __init__(self, path: Location, codec: str) -> None:
        self._path, self._codec = path, codec
        self._stream: pa.CompressedInputStream | None = None
        self._at = 0
        self._lock = Lock()

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """So many bytes from an offset of the decompressed file on; fewer only at the end."""
        with self._lock:  # a thread may read ahead while another reads
            try:
                return self._read_at(nbytes, offset)
            except (pa.ArrowException, OSError) as error:
                self._stream = None
                raise DataFormatError(
                    f"{self._path} cannot be decompressed ({self._codec}): {error}. It may be truncated; copy or write "
                    "it again."
                ) from error

    def _read_at(self, nbytes: int, offset: int) -> bytes:
        if self._stream is None or offset < self._at:
            packed = pa.BufferedInputStream(open_file(self._path), SKIP_BYTES)  # else it would be read in small pieces
            self._stream, self._at = pa.CompressedInputStream(packed, self._codec), 0
        while self._at < offset:
            skipped = len(self._stream.read(min(SKIP_BYTES, offset - self._at)))
            if not skipped:
                return b""
            self._at += skipped
        parts = []
        while nbytes > 0 and (part := self._stream.read(nbytes)):
            parts.append(part)
            nbytes -= len(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
