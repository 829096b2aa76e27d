"""Words for messages."""


def count(noun: str, number: int, plural: str | None = None) -> str:
    """The number and its noun, as in "1 file" and "1,234 files"; ``plural`` is for nouns that do not just add an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def size_in_words(nbytes: int) -> str:
    """A number of bytes in the largest unit of which there is one, as in "512 MiB" and "1.5 GiB"."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, nbytes.bit_length() - 1) // 10)
    return f"{nbytes / 1024**power:.1f}".removesuffix(".0") + f" {units[power]}"
