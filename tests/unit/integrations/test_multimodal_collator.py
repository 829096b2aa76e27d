"""Batches of samples and packs: flattened or padded, with whatever does not run along the tokens joined."""

from collections import UserDict

import numpy as np
import pytest
import torch

from midepoch import MultiModalCollator
from midepoch.stages.pack.packs import ids_within


def sample(*tokens, **others):
    return {"input_ids": np.array(tokens, np.int32), "labels": np.array(tokens, np.int64) + 100, **others}


def pack(*sizes, pad=0, **others):
    """A pack of documents of these sizes, with padding after them."""
    ends = np.cumsum([0, *sizes]).astype(np.int32)
    total = int(ends[-1]) + pad
    positions, documents = ids_within(ends, total)
    return {
        "input_ids": np.arange(1, total + 1),
        "position_ids": positions,
        "document_ids": documents,
        "cu_seqlens": ends,
        **others,
    }


def lists(batch):
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def test_C1_samples_padded_right():
    assert lists(MultiModalCollator(pad=9)([sample(1, 2, 3), sample(4)])) == {
        "input_ids": [[1, 2, 3], [4, 9, 9]],
        "labels": [[101, 102, 103], [104, -100, -100]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
    }


def test_C1_samples_flattened():
    assert lists(MultiModalCollator(padding="flatten")([sample(1, 2, 3), sample(4), sample(5, 6)])) == {
        "input_ids": [[1, 2, 3, 4, 5, 6]],
        "labels": [[101, 102, 103, 104, 105, 106]],
        "position_ids": [[0, 1, 2, 0, 0, 1]],
        "document_ids": [[0, 0, 0, 1, 2, 2]],
        "cu_seqlens": [0, 3, 4, 6],
        "max_seqlen": 3,
    }


def test_C6_packs_flattened_keep_their_documents_and_leave_their_padding():
    assert lists(MultiModalCollator(padding="flatten")([pack(2, 1, pad=2), pack(3)])) == {
        "input_ids": [[1, 2, 3, 1, 2, 3]],
        "position_ids": [[0, 1, 0, 0, 1, 2]],
        "document_ids": [[0, 0, 1, 2, 2, 2]],
        "cu_seqlens": [0, 2, 3, 6],
        "max_seqlen": 3,
    }


@pytest.mark.parametrize("padding", ["left", "right"])
def test_packs_padded_have_no_attention_on_any_padding(padding):
    batch = lists(MultiModalCollator(padding=padding, pad=0)([pack(2, 1, pad=1), pack(2)]))
    right = padding == "right"
    assert batch["attention_mask"] == [[1, 1, 1, 0], [1, 1, 0, 0] if right else [0, 0, 1, 1]]
    assert batch["document_ids"] == [[0, 0, 1, -1], [0, 0, -1, -1] if right else [-1, -1, 0, 0]]
    assert "cu_seqlens" not in batch


def test_a_mask_that_is_there_is_kept_and_padded_with_zero():
    items = [sample(1, 2, attention_mask=[1, 0], loss_mask=[0.5, 1.0]), sample(3, attention_mask=[1], loss_mask=[2.0])]
    batch = MultiModalCollator()(items)
    assert batch["attention_mask"].tolist() == [[1, 0], [1, 0]]
    assert batch["loss_mask"].tolist() == [[0.5, 1.0], [2.0, 0.0]]
    masks = [sample(1, attention_mask=np.array([True])), sample(1, 2, attention_mask=np.array([True, False]))]
    assert MultiModalCollator()(masks)["attention_mask"].dtype == torch.bool


def test_C1_media_are_joined_and_who_has_none_is_left_out():
    pixels = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    items = [
        sample(1, pixel_values=pixels, grid=np.array([[1, 2, 3]]), pixel_attention_mask=np.ones((2, 3, 4), bool)),
        sample(2, 3, pixel_values=None, grid=None, pixel_attention_mask=None),
        sample(4, pixel_values=torch.from_numpy(pixels[:1]), grid=torch.tensor([[4, 5, 6]]), pixel_attention_mask=None),
    ]
    for padding in ("flatten", "left", "right"):
        batch = MultiModalCollator(padding=padding)(items)
        assert torch.equal(batch["pixel_values"], torch.from_numpy(np.concatenate([pixels, pixels[:1]])))
        assert batch["grid"].tolist() == [[1, 2, 3], [4, 5, 6]]
        assert batch["pixel_attention_mask"].shape == (2, 3, 4)
    assert MultiModalCollator()([items[1]])["pixel_values"] is None


def test_arrays_that_cannot_be_written_to_are_copied_without_a_warning():
    pixels = np.ones((1, 2))
    pixels.setflags(write=False)
    MultiModalCollator()([sample(1, pixel_values=pixels)])["pixel_values"][0, 0] = 5
    assert pixels[0, 0] == 1


def test_scalars_strings_and_other_things():
    items = [
        sample(1, id=3, score=0.5, ok=True, name="a", sizes=[(1, 2)], maybe=None, none=None, number=np.int64(4)),
        sample(2, id=4, score=1.5, ok=False, name="b", sizes=[], maybe=7, none=None, number=np.int64(5)),
    ]
    batch = MultiModalCollator()(items)
    assert (batch["id"].tolist(), batch["score"].tolist(), batch["ok"].tolist()) == ([3, 4], [0.5, 1.5], [True, False])
    assert (batch["name"], batch["sizes"], batch["maybe"], batch["none"]) == (
        ["a", "b"],
        [[(1, 2)], []],
        [None, 7],
        None,
    )
    assert batch["number"].tolist() == [4, 5]


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, lambda tokens: np.array(tokens, np.uint16)])
def test_numpy_torch_and_lists_give_the_same(make):
    items = [{"input_ids": make(tokens), "labels": make(tokens)} for tokens in ([1, 2], [3])]
    batch = MultiModalCollator()(items)
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    assert (batch["input_ids"].tolist(), batch["labels"].tolist()) == ([[1, 2], [3, 0]], [[1, 2], [3, -100]])


@pytest.mark.parametrize("padding", ["flatten", "left", "right"])
def test_a_sample_without_tokens_and_a_single_one(padding):
    collate = MultiModalCollator(padding=padding)
    batch = collate([sample(1, 2), {"input_ids": [], "labels": []}])
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    assert batch["input_ids"].numel() == (2 if padding == "flatten" else 4)
    assert collate(sample(1, 2))["input_ids"].tolist() == [[1, 2]]
    assert collate(UserDict(sample(1, 2)))["input_ids"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([sample(1), sample(1, more=2)], r"same keys, but one has \['input_ids', 'labels'\] and another .*'more'"),
        ([{"labels": [1]}], "A sample has no 'input_ids'; it has: labels"),
        ([{"input_ids": None}], "A sample has no 'input_ids'"),
        ([[1, 2]], "A sample has no 'input_ids'; it is a list"),
        ([{"input_ids": [1, 2], "labels": [1]}], "labels has 1 value and input_ids has 2"),
        ([sample(1), sample(1) | {"labels": None}], "labels is None in one sample of a batch and not in others"),
        ([{"input_ids": torch.ones(1, 4, dtype=torch.int64)}], r"input_ids is an array of 2 dimensions.*take \[0\]"),
        (
            [sample(1, pixel_values=np.ones((1, 2))), sample(1, pixel_values=np.ones((1, 3)))],
            r"'pixel_values' has arrays of the shapes \('n', 2\) and \('n', 3\)",
        ),
    ],
)
def test_samples_that_cannot_be_a_batch_raise(items, message):
    with pytest.raises(ValueError, match=message):
        MultiModalCollator()(items)


def test_an_unknown_padding_is_refused():
    with pytest.raises(ValueError, match="padding is 'up'; it can be 'flatten', 'right' or 'left'"):
        MultiModalCollator(padding="up")
