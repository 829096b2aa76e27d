"""Words for messages."""


def count(noun: str, number: int, plural: str | None = None) -> str:
    """The number and its noun, as in "1 file" and "1,234 files"; ``plural`` is for nouns that do not just add an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
