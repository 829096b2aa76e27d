"""The docstring of every public function, class and method describes each parameter of its signature."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import midepoch
from reference_page import hidden_members, reference_names

SOURCE = Path(__file__).parents[2] / "src" / "midepoch"
HIDDEN = hidden_members()


def public_callables():
    """The name of each, its parameters, and its docstring."""
    for name in dict.fromkeys([*midepoch.__all__, *reference_names()]):
        yield from parsed(name) if name.startswith("integrations.") else imported(name)


def imported(name):
    """A public name, and its methods; what they inherit counts."""
    module, _, attribute = f"midepoch.{name}".rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    if not isinstance(value, type):
        yield name, parameters_of(value), inspect.getdoc(value)
        return
    if not issubclass(value, Exception) or inspect.isfunction(value.__init__):  # else it is built as any exception
        yield name, parameters_of(value), f"{inspect.getdoc(value)}\n{inspect.getdoc(value.__init__)}"
    for member, inner in inspect.getmembers(value, is_own_method):
        if not HIDDEN.search(member):
            yield f"{name}.{member}", parameters_of(inner), inspect.getdoc(inner)


def is_own_method(value):
    return (inspect.isfunction(value) or inspect.ismethod(value)) and value.__module__.startswith("midepoch")


def parameters_of(value):
    return [name for name in inspect.signature(value).parameters if name != "self"]


def parsed(name):
    """A front door, and its methods, without an import of the framework that it is for."""
    module, _, attribute = name.rpartition(".")
    path = SOURCE.joinpath(*module.split("."))
    paths = path.glob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    nodes = [node for path in paths for node in ast.parse(path.read_text()).body]
    (node,) = (node for node in nodes if getattr(node, "name", None) == attribute)
    if isinstance(node, ast.FunctionDef):
        yield name, arguments_of(node), ast.get_docstring(node)
        return
    methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
    fields = [inner.target.id for inner in node.body if isinstance(inner, ast.AnnAssign)]
    yield name, arguments_of(methods["__init__"]) if "__init__" in methods else fields, ast.get_docstring(node)
    for member, method in methods.items():
        if not HIDDEN.search(member):
            yield f"{name}.{member}", arguments_of(method), ast.get_docstring(method)


def arguments_of(node):
    args = node.args
    given = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return [arg.arg for arg in given if arg is not None and arg.arg != "self"]


def missing(parameters, doc):
    """The parameters that a docstring does not name in backticks, as ``name`` or ``name=value``."""
    return [name for name in parameters if not re.search(rf"`{name}(=[^`]*)?`", doc or "")]


CALLABLES = {name: (parameters, doc) for name, parameters, doc in public_callables()}


@pytest.mark.parametrize("name", CALLABLES)
def test_each_parameter_is_described(name):
    found = missing(*CALLABLES[name])
    assert not found, f"the docstring of {name} does not describe {', '.join(found)}"


def test_a_parameter_that_is_only_part_of_a_word_is_missing():
    doc = 'The seed of ``seeds``, ``level="row"`` and ``window(8)``, with ``n`` rows.'
    assert missing(["seed", "level", "window", "n", "rows"], doc) == ["seed", "window", "rows"]
    assert missing(["seed"], None) == ["seed"]
