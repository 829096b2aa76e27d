"""Write shards of all encodings by `mosaicml-streaming` 0.13, and what its StreamingDataset makes of them.

It needs a Python with that package, which the tests do not: ``python tests/golden/mds/write.py``.
"""

import io
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset

HERE = Path(__file__).parent
NUMBERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)] + ["float16", "float32", "float64"]
COLUMNS = {
    **{name: name for name in ("bytes", "str", "int", "str_int", "str_float", "str_decimal", "pil", "jpeg", "png")},
    **{name: name for name in ("jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]", "json", "pkl")},
    **{"any": "ndarray", "axes": "ndarray:uint16", "fixed": "ndarray:int32:3,2", "tokens": "ndarray:int64"},
    **{name: name for name in NUMBERS},
}


def sample(number: int) -> dict[str, object]:
    picture = Image.new("RGB", (4, 3), (number, 40, 250))
    jpeg = io.BytesIO()
    picture.save(jpeg, "JPEG")
    return {
        **{"bytes": bytes(range(number)), "str": f"größe {number}", "int": -number, "str_int": 10**30 + number},
        **{"str_float": number / 3, "str_decimal": Decimal(f"1.{number}00"), "json": {"a": [number, None]}},
        **{"pil": picture, "jpeg": picture, "png": picture, "pkl": {"set": {number}}},
        **{"jpeg_array": [jpeg.getvalue()] * (1 + number % 2), "jpegarray": [jpeg.getvalue()]},
        **{"list[pil]": [picture] * (number % 3), "list[jpeg]": [picture], "list[png]": [picture, picture]},
        **{"any": np.arange(1 + number % 3, dtype="float32"), "tokens": np.arange(300 * (number % 2) + 1)},
        **{
            "axes": np.arange(6 * (1 + number % 2), dtype="uint16").reshape(2, -1),
            "fixed": np.full((3, 2), number, "i4"),
        },
        **{name: np.dtype(name).type(number) for name in NUMBERS},
    }


def plain(value: object) -> object:
    """A value as JSON can have it. JPEG pixels may differ by a little between versions of the decoder."""
    if isinstance(value, Image.Image):
        return [value.mode, list(value.size), *([] if value.format == "JPEG" else [value.tobytes().hex()])]
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | set):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value.hex() if isinstance(value, bytes) else str(value) if isinstance(value, Decimal) else value


if __name__ == "__main__":
    for compression in (None, "zstd", "gz", "br", "snappy", "bz2"):
        folder = HERE / (compression or "raw")
        with MDSWriter(
            out=str(folder), columns=COLUMNS, compression=compression, size_limit=18000, exist_ok=True
        ) as out:
            for number in range(5):
                out.write(sample(number))
    dataset = StreamingDataset(local=str(HERE / "raw"), shuffle=False, batch_size=1, allow_unsafe_types=True)
    rows = [plain(dataset[number]) for number in range(len(dataset))]
    (HERE / "expected.json").write_text(json.dumps(rows))
