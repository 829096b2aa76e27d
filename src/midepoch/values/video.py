"""Frames of videos at times that rows name: found by seeking, exact by presentation time, from torchcodec or PyAV."""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import chain
from typing import Any, Protocol

import numpy as np

from midepoch._common.checks import check_integer, count, log_once
from midepoch.errors import DataFormatError, SchemaMismatchError, needs

ROUNDING = 1e-3
"""A time that is fewer seconds before a frame means that frame: times are often stored with 32 bits."""
NEAR = 1.0
"""A frame that is at most so many seconds ahead is decoded to; one farther away is sought."""
READ_BYTES = 1 << 20
"""What is fetched of an object in a store at a time."""
MANY = 16
"""torchcodec, which reads a whole file before its first frame, is the faster one for this many frames or more."""
HEAD = 4096
"""More than FFmpeg looks at to recognise a container that begins with its mark."""


VIDEO_FORMATS = "asf,avi,flv,gif,h264,hevc,matroska,mov,mp4,mpeg,mpegts,mpegvideo,ogg,webm"
"""What bytes are decoded as videos. FFmpeg knows playlists too, which open other files."""
MOST_DECODED_BYTES = 4 << 30
"""What a recording or the frames of a video may take in memory. Pillow has a limit of its own for images."""


class OpenedFiles(Protocol):
    """Opens files that rows name."""

    def open(self, name: str) -> Any:
        """A file to read and seek in. Raises if rows may not name it."""


@dataclass(frozen=True, kw_only=True)
class DecodeVideo:
    """The function that ``Dataset.decode(video=...)`` maps over rows."""

    columns: tuple[str, ...]
    at: str | None
    frames: str | int | None
    files: OpenedFiles
    keeps_columns = True

    def __post_init__(self) -> None:
        if (self.at is None) == (self.frames is None):
            raise ValueError(
                "decode(video=...) needs either at=, a column of times in seconds, or frames=, a column of frame "
                "numbers or how many evenly spaced frames to take."
            )
        if not self.columns:
            raise ValueError("at= and frames= are for videos: pass video=, the column of their files, too.")
        if self.frames is not None and not isinstance(self.frames, str):
            check_integer("frames", self.frames, least=1)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The frames of each video of a row: an array (height, width, 3) of one, or (frames, height, width, 3)."""
        wanted = self.frames if isinstance(self.frames, int) else self._of(row, self.at or self.frames or "")
        return {name: self._frames(self._of(row, name), wanted) for name in self.columns}

    def _of(self, row: Mapping[str, Any], name: str) -> Any:
        if name not in row:
            raise SchemaMismatchError(f"decode: there is no column {name!r}. There are: {', '.join(row)}.")
        return row[name]

    def _frames(self, value: Any, wanted: Any) -> Any:
        path = value.get("path") if isinstance(value, Mapping) else value
        value = value["bytes"] if isinstance(value, Mapping) and value.get("bytes") is not None else path
        if value is None:
            return None
        if wanted is None:
            raise DataFormatError(f"The row has no {'time' if self.at else 'number'} of a frame: it is null.")
        is_single = not isinstance(self.frames, int) and np.ndim(wanted) == 0
        several = [wanted] if is_single else wanted
        try:
            with self.files.open(value) if isinstance(value, str) else opened_bytes(value) as file:
                taken = frames_of(file, **{"times" if self.at else "numbers": several})
        except Exception as error:
            if isinstance(path, str):
                error.add_note(
                    f"midepoch: the file is {path[:300]}. Restore it, or leave out the row below by `without`."
                )
            raise
        return taken[0] if is_single else taken

    def describe(self) -> dict[str, Any]:
        """What a state remembers."""
        return {"video": list(self.columns), "at": self.at, "frames": self.frames}


def opened_bytes(value: Any) -> io.BytesIO:
    """A file of bytes. Raises if the value is anything else."""
    if isinstance(value, bytes | bytearray | memoryview):
        return io.BytesIO(value)
    raise TypeError(f"Expected bytes, a path, or a dict with 'bytes' or 'path', got {type(value).__name__}.")


def check_decoded(what: str, nbytes: int) -> None:
    """Raise before something takes too much memory that may be meant to fill it."""
    if nbytes > MOST_DECODED_BYTES:
        raise DataFormatError(
            f"{what} becomes more than {MOST_DECODED_BYTES:,} bytes once decoded. If it is trusted, decode it in a "
            "function of your own, with map(fn), or fewer frames of it."
        )


def frames_of(file: Any, *, times: Sequence[float] | None = None, numbers: Sequence[int] | int | None = None) -> Any:
    """The frames of a video that are shown at ``times`` in seconds, or that have these ``numbers``, as RGB bytes.

    An integer for ``numbers`` is how many evenly spaced frames to take. The same frame may be asked for several times.
    Without both, these are all frames.
    """
    times = None if times is None else [float(time) for time in times]
    if times is not None and not all(map(math.isfinite, times)):
        raise DataFormatError(f"The times of frames are not all numbers: {times}. Correct the column.")
    decoder = _torchcodec_decoder(file, _length(times, numbers))
    if decoder is None:
        with needs("av", "video", "Decoding videos"):
            import av
        options = {"format_whitelist": VIDEO_FORMATS}
        with av.open(file, mode="r", options=options, buffer_size=READ_BYTES) as container:
            if not container.streams.video:
                raise DataFormatError("The file has no video in it. Correct its name, or leave out the row.")
            return PyavFrames(container).take(times, numbers)
    meta = decoder.metadata
    wanted = meta.num_frames if times is None and numbers is None else _length(times, numbers)
    check_decoded("The video", wanted * 3 * meta.width * meta.height)
    if times is None:
        chosen = _numbers(numbers, meta.num_frames)
        return decoder.get_frames_at(chosen).data.numpy() if chosen else _none(meta)
    begin, end = meta.begin_stream_seconds, meta.end_stream_seconds
    for time in times:
        _check_time(time, begin, end)
    shown = [min(max(begin, time + ROUNDING), math.nextafter(end, begin)) for time in times]
    return decoder.get_frames_played_at(shown).data.numpy() if shown else _none(meta)


class PyavFrames:
    """The frames of an open container. Those that are near each other are decoded in one go."""

    def __init__(self, container: Any) -> None:
        self._container, self._stream = container, container.streams.video[0]
        self._base = float(self._stream.time_base)
        self._begin = self._stream.start_time or 0
        self._frames: Iterator[Any] = iter(())
        self._shown: Any = None
        self._next: Any = None

    def take(self, times: Sequence[float] | None, numbers: Sequence[int] | int | None) -> Any:
        """The frames at these times, or with these numbers."""
        if times is not None:
            ticks = [math.floor((time + ROUNDING) / self._base) for time in times]
            return self._stacked(
                ticks, ((tick, self._at(tick, times[ticks.index(tick)])) for tick in sorted(set(ticks)))
            )
        stamps, untimed = list[int](), list[Any]()
        for packet in self._container.demux(self._stream):
            stamps += [] if packet.pts is None else [packet.pts]
            untimed += [packet] if packet.pts is None else []
        if stamps:
            stamps.sort()
            ticks = [stamps[number] for number in _numbers(numbers, len(stamps))]
            return self._stacked(ticks, ((tick, self._at(tick, tick * self._base)) for tick in sorted(set(ticks))))
        # A raw stream, whose frames have no times.
        chosen = _numbers(numbers, sum(packet.size > 0 for packet in untimed))
        frames = enumerate(frame for packet in untimed for frame in packet.decode())
        return self._stacked(chosen, ((number, frame) for number, frame in frames if number in chosen))

    def _stacked(self, wanted: Sequence[int], frames: Iterator[tuple[int, Any]]) -> Any:
        """The wanted ones of numbered frames. The last is repeated where frames at the end are missing."""
        kept: dict[int, Any] = {}
        nbytes = 0
        for number, frame in frames:
            nbytes += 3 * frame.width * frame.height
            check_decoded("The video", nbytes)
            kept[number] = frame.to_ndarray(format="rgb24")
        return np.stack([kept[min(number, max(kept))] for number in wanted]) if kept else _none(self._stream)

    def _at(self, tick: int, time: float) -> Any:
        """The frame that is shown at a time, given in two units. Times that follow each other must rise."""
        if self._shown is None or tick - self._shown.pts > NEAR / self._base:
            self._seek(tick)
        while self._next is not None and self._next.pts <= tick:
            self._shown, self._next = self._next, next(self._frames, None)
        begin = self._shown or self._next
        if begin is None:
            raise DataFormatError("The video has no frames. Restore the file, or leave its rows out.")
        end = math.inf
        if self._next is None:
            rate = self._stream.average_rate
            end = (begin.pts + begin.duration) * self._base if begin.duration or not rate else begin.time + 1 / rate
        _check_time(time, begin.pts * self._base if begin.pts > tick else -math.inf, end)
        return begin

    def _seek(self, tick: int) -> None:
        """Go to the last key frame that is shown at a time or before.

        A container finds key frames by when they are decoded, which is earlier. So the one that is found may be shown
        too late. Then an earlier one is sought.
        """
        back, second = 0, math.ceil(1 / self._base)
        while True:
            start = tick - back
            self._container.seek(start, stream=self._stream)
            packets = self._container.demux(self._stream)
            key = next((packet for packet in packets if packet.pts is not None and packet.is_keyframe), None)
            if (key is not None and key.pts <= tick) or start < self._begin - second:
                break
            back = 2 * back or second
        following = packets if key is None else chain([key], packets)
        self._frames = (frame for packet in following for frame in packet.decode() if frame.pts is not None)
        self._shown, self._next = None, next(self._frames, None)


def _check_time(time: float, begin: float, end: float) -> None:
    """Raise if a video shows nothing at a time."""
    if time + ROUNDING < begin or time > end:
        where = f"it begins at {begin:.6g} s" if time < begin else f"it ends at {end:.6g} s"
        raise DataFormatError(
            f"The video has no frame at {time:.6g} s: {where}. Correct the time, or leave out the row."
        )


def _numbers(numbers: Sequence[int] | int | None, total: int) -> list[int]:
    """The numbers of frames, of which a single integer says how many evenly spaced ones."""
    if not total:
        raise DataFormatError("The video has no frames. Restore the file, or leave its rows out.")
    if isinstance(numbers, int):
        return [int(one) for one in np.linspace(0, total - 1, numbers).round()]
    chosen = [int(one) for one in (range(total) if numbers is None else numbers)]
    for number in chosen:
        if not 0 <= number < total:
            raise DataFormatError(
                f"The video has {count('frame', total)}, and none with the number {number:,}: they are counted from "
                "0. Correct the number, or leave out the row."
            )
    return chosen


def _length(times: Sequence[float] | None, numbers: Sequence[int] | int | None) -> int:
    """How many frames are asked for; at least ``MANY`` if these are all."""
    if isinstance(numbers, int):
        return numbers
    chosen = numbers if times is None else times
    return MANY if chosen is None else len(chosen)


def _none(video: Any) -> Any:
    """No frame, in the shape of several."""
    return np.empty((0, video.height, video.width, 3), np.uint8)


def _torchcodec_decoder(file: Any, frames: int) -> Any:
    """A decoder of torchcodec; None without it, and for files that PyAV decodes sooner, or has to decode.

    torchcodec cannot be told which containers to open, and some are lists of other files. It turns videos that say how
    they are to be turned; PyAV does not.
    """
    decoder = _video_decoder()
    if decoder is None or (frames < MANY and find_spec("av") is not None):
        return None
    head = file.read(HEAD)
    is_plain = (head[4:8] == b"ftyp" or head.startswith(b"\x1aE\xdf\xa3")) and b"<MPD" not in head
    file.seek(0)
    if not is_plain:
        return None
    made = decoder(file, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact")
    return None if made.metadata.rotation else made


@cache
def _video_decoder() -> Any:
    """The decoder of torchcodec, if it is installed and finds FFmpeg."""
    if find_spec("torchcodec") is None:
        return None
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, OSError, RuntimeError) as error:
        log_once(f"torchcodec is installed, but cannot be loaded, so PyAV decodes videos: {str(error).splitlines()[0]}")
        return None
    return VideoDecoder
