"""One set of options, spelled out in the public signature."""

import inspect
from dataclasses import MISSING, fields

import pytest

import midepoch as me
from midepoch.integrations.multimodal.options import MultiModalOptions


def test_the_public_signature_has_every_option_with_its_type_and_default():
    parameters = dict(inspect.signature(me.MultiModalIterableDataset.__init__).parameters)
    options = {option.name: option for option in fields(MultiModalOptions)}
    assert set(parameters) == {"self", "source", *options}
    for name, option in options.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].annotation == option.type
        assert parameters[name].default == (inspect.Parameter.empty if option.default is MISSING else option.default)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_error": "ignore"}, "on_error is 'ignore'; it can be 'raise' or 'skip'"),
        ({"max_skipped": 3}, "max_skipped is 3, but nothing is skipped"),
        ({"max_skipped": -1, "on_error": "skip"}, "max_skipped"),
        ({"processor": "tokenize"}, "processor must be a function of a sample, got 'tokenize'"),
        ({"shuffle_seed": 1, "data_seed": 2}, r"shuffle_seed is 1 and data_seed is 2\. Pass one of them"),
        ({"data_seed": 1.5}, "shuffle_seed must be an integer"),
        ({"rank": 0}, "rank is 0 and num_ranks is None; pass both, or neither"),
        ({"video_frames": 0}, "video_frames is 0; it must be at least 1"),
        ({"trust_shared": "no"}, "trust_shared must be True or False, got 'no'"),
    ],
)
def test_a_wrong_option_raises_before_anything_is_opened(options, error):
    with pytest.raises((ValueError, TypeError), match=error):
        me.MultiModalIterableDataset("nowhere", **{"processor": dict, **options})


def test_keys_of_stores_are_not_shown():
    assert "hidden" not in repr(MultiModalOptions(processor=dict, storage_options={"key": "hidden"}))
