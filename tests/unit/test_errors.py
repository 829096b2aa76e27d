import pickle

import pytest

import midepoch as me

ERRORS = [getattr(me, name) for name in me.__all__ if name.endswith("Error")]


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_is_the_same_in_another_process(kind):
    error = kind("ray", "ray", "This") if kind is me.MissingExtraError else kind("What is wrong, and what to do.")
    error.add_note("a note")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__notes__) == (kind, str(error), ["a note"])


def test_a_missing_extra_is_named():
    error = me.MissingExtraError("ray", "ray", "midepoch.integrations.ray")
    assert str(error) == "midepoch.integrations.ray needs ray, which is not installed: pip install 'midepoch[ray]'"
