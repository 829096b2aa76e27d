"""Frames at times: exact, found from any key frame, the same as a decoder that begins at the start finds."""

import io
from fractions import Fraction

import av
import numpy as np
import pytest

import midepoch as me
from midepoch.values import video as module
from midepoch.values.video import frames_of

RATE = 30
CODECS = {
    "h264": ("libx264", {"bf": "3", "g": "12"}, "mp4"),
    "h264 with open groups": ("libx264", {"bf": "3", "g": "9", "x264-params": "open-gop=1:b-pyramid=normal"}, "mp4"),
    "hevc": ("libx265", {"g": "10", "x265-params": "log-level=none:open-gop=1"}, "mp4"),
    "mpeg4": ("mpeg4", {"g": "300"}, "mp4"),
    "vp9": ("libvpx-vp9", {"g": "20", "deadline": "realtime"}, "webm"),
    "transport stream": ("libx264", {"bf": "2", "g": "12"}, "mpegts"),
}


def film(codec="h264", frames=48, *, stamps=None):
    """A video of which every frame differs, at 30 frames a second or at the given numbers of 1/30 s."""
    name, options, container = CODECS[codec]
    file, noise = io.BytesIO(), np.random.default_rng(0).integers(0, 255, (4, 6, 3), np.uint8)
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(name, rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number in range(frames):
            picture = np.roll(noise, number, axis=1).repeat(16, 0).repeat(16, 1)
            picture[:16] = 5 * number % 256
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number if stamps is None else stamps[number]
            frame.time_base = Fraction(1, RATE)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return file.getvalue()


def from_the_start(content):
    """The times and pixels of all frames, in the order in which they are shown."""
    with av.open(io.BytesIO(content)) as container:
        return [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


@pytest.fixture(params=["PyAV", "torchcodec"])
def decoder(request, monkeypatch):
    """Each decoder that is installed. What PyAV decodes is compared with PyAV itself."""
    module._video_decoder.cache_clear()
    monkeypatch.setattr(module, "MANY", 0)
    if request.param == "PyAV":
        monkeypatch.setattr(module, "_video_decoder", lambda: None)
    elif module._video_decoder() is None:
        pytest.skip("torchcodec is not installed, or does not find FFmpeg")
    return request.param


@pytest.mark.parametrize("codec", CODECS)
def test_F5_every_frame_is_found_alone_and_with_others(codec, decoder):
    content = film(codec)
    known = from_the_start(content)
    assert len(known) == 48
    order = np.random.default_rng(1).permutation(len(known)).tolist()
    for number in order:
        (found,) = frames_of(io.BytesIO(content), times=[known[number][0]])
        assert np.array_equal(found, known[number][1]), number
    together = frames_of(io.BytesIO(content), times=[known[number][0] for number in [*order, *order[:5]]])
    assert all(np.array_equal(one, known[n][1]) for one, n in zip(together, [*order, *order[:5]], strict=True))
    numbered = frames_of(io.BytesIO(content), numbers=order)
    assert all(np.array_equal(one, known[number][1]) for one, number in zip(numbered, order, strict=True))
    even = frames_of(io.BytesIO(content), numbers=4)
    assert all(np.array_equal(one, known[number][1]) for one, number in zip(even, [0, 16, 31, 47], strict=True))


def test_a_time_means_the_frame_that_is_shown_then(decoder):
    content = film(stamps=[0, 1, 2, 7, 8, 30, 31, 90, *range(100, 140)])
    known = from_the_start(content)
    begins = [time for time, _ in known]
    for time in np.random.default_rng(2).uniform(begins[0], begins[-1], 60).tolist():
        number = max(n for n, begin in enumerate(begins) if begin <= time + module.ROUNDING)
        (found,) = frames_of(io.BytesIO(content), times=[time])
        assert np.array_equal(found, known[number][1]), time
    (last,) = frames_of(io.BytesIO(content), times=[begins[-1] + 1 / RATE])
    assert np.array_equal(last, known[-1][1])
    stored = np.array(begins, np.float32)  # as in most Parquet files of frames
    found = frames_of(io.BytesIO(content), times=stored)
    assert all(np.array_equal(one, picture) for one, (_, picture) in zip(found, known, strict=True))


@pytest.mark.parametrize("codec", ["h264", "transport stream"])
def test_a_time_without_a_frame_is_named(codec, decoder):
    content = film(codec)
    begin = from_the_start(content)[0][0]
    for time in (begin + 48 / RATE + 0.1, begin - 0.5, begin + 1e6):
        with pytest.raises(me.DataFormatError, match=r"no frame at .* s: it (begins|ends) at .*Correct the time"):
            frames_of(io.BytesIO(content), times=[time])
    with pytest.raises(me.DataFormatError, match="48 frames, and none with the number 48"):
        frames_of(io.BytesIO(content), numbers=[3, 48])
    with pytest.raises(me.DataFormatError, match="not all numbers"):
        frames_of(io.BytesIO(content), times=[float("nan")])
    assert frames_of(io.BytesIO(content), times=[]).shape == (0, 64, 96, 3)


def test_a_playlist_is_opened_by_nobody(decoder):
    for content in (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n/etc/passwd\n", b"ffconcat version 1.0\nfile /etc/passwd\n"):
        with pytest.raises(Exception, match="Invalid"):
            frames_of(io.BytesIO(content), times=[0.0])
