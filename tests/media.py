"""Small real files for tests: images, audio and video."""

import base64
import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile


def picture(shade: int, kind: str = "PNG", size: tuple[int, int] = (6, 4), mode: str = "RGB") -> bytes:
    """The bytes of an image of one shade with a black corner."""
    file = io.BytesIO()
    image = PIL.Image.new(mode, size, (shade % 256, 0, 255) if mode == "RGB" else shade)
    image.putpixel((0, 0), (0, 0, 0) if mode == "RGB" else 0)
    image.save(file, kind)
    return file.getvalue()


def shade_of(image: Any) -> int:
    """The shade that an image was made with."""
    return int(np.asarray(image)[-1, -1, 0])


def tone(samples: int = 40, rate: int = 8000, kind: str = "WAV", channels: int = 1) -> bytes:
    """The bytes of an audio file whose samples rise evenly, the same in all channels."""
    file = io.BytesIO()
    rising = np.linspace(-0.5, 0.5, samples, dtype=np.float32)
    soundfile.write(file, np.stack([rising] * channels, axis=1).squeeze(), rate, format=kind)
    return file.getvalue()


def film(path: Path, frames: int = 10, codec: str = "mpeg4", size: tuple[int, int] = (32, 16)) -> Path:
    """A video whose frames become lighter by 20 levels of grey each."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=5)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(frames):
            grey = np.full((size[1], size[0], 3), 20 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    return path


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def episodes(folder: Path, *, number: int = 3, frames: int = 40, rate: int = 20) -> list[dict[str, Any]]:
    """A folder as LeRobot lays it out: rows with timestamps in Parquet, and a video for each episode and camera.

    The grey of a frame is 5 times its number, plus 2 times the episode; that of the second camera is 20 more.
    """
    rows: list[dict[str, Any]] = []
    for episode in range(number):
        for camera, more in (("front", 0), ("wrist", 20)):
            path = folder / "videos" / camera / f"episode_{episode:06}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            with av.open(str(path), "w") as container:
                stream = container.add_stream("libx264", rate=rate, options={"g": "15", "bf": "2", "crf": "5"})
                stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
                for frame in range(frames):
                    grey = np.full((48, 64, 3), 5 * frame + 2 * episode + more, np.uint8)
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
                container.mux(stream.encode())
        for frame in range(frames):
            names = {camera: f"videos/{camera}/episode_{episode:06}.mp4" for camera in ("front", "wrist")}
            rows.append(
                {"episode_index": episode, "frame_index": frame, "timestamp": np.float32(frame / rate), **names}
            )
    (folder / "data").mkdir()
    for episode in range(number):
        table = pa.Table.from_pylist([row for row in rows if row["episode_index"] == episode])
        pq.write_table(table, folder / "data" / f"episode_{episode:06}.parquet", row_group_size=10)
    return rows
