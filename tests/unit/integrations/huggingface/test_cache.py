"""The arguments of a call of `datasets`."""

from midepoch.integrations.huggingface.cache import LoadArguments


def test_a_token_is_not_shown():
    arguments = LoadArguments(path="org/name", others={"token": "hf_hush", "storage_options": {"key": "hush"}})
    assert "hush" not in repr(arguments)
    assert "org/name" in repr(arguments)
