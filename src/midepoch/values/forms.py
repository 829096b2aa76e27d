"""The forms in which users get values: Python, NumPy, torch or Arrow."""

from typing import Any, Literal, get_args

from midepoch.errors import MissingExtraError

Form = Literal["python", "numpy", "torch", "arrow"]
FORMS: tuple[Form, ...] = get_args(Form)


def torch_module() -> Any:
    """The torch module, imported when it is first needed. Raises with the install command if it is missing."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch", "The form 'torch'") from error
    return torch


def is_plain_tensor(value: Any) -> bool:
    """True for tensors that are numbers in the processor's memory and nothing else."""
    torch = torch_module()
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg() or value.__dict__)
    )
