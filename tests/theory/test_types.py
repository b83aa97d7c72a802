"""What the door accepts: tensors, numpy arrays and lists alike; and what types refuse before a program runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path as File

import numpy as np
import pytest
import torch

import unhinge
from strategies import make_case
from unhinge import LayerPeeled, Spherical, minibatch_moments, summarize, symmetric_noise
from unhinge.theory import class_conditional_noise

CASE = make_case([3, 2, 2], bias=True, gamma=0.3)
KERNEL = torch.eye(len(CASE.target), dtype=torch.float64) + 0.5

AS = {
    "tensor": lambda tensor: tensor,
    "array": lambda tensor: tensor.numpy(),
    "list": lambda tensor: tensor.tolist(),
    "tuple": lambda tensor: tuple(map(tuple, tensor.tolist())) if tensor.ndim == 2 else tuple(tensor.tolist()),
    "read-only array": lambda tensor: np.frombuffer(tensor.numpy().tobytes(), tensor.numpy().dtype).reshape(
        tensor.shape
    ),
    "reversed array": lambda tensor: tensor.numpy()[::-1].copy()[::-1],
    "big-endian array": lambda tensor: tensor.numpy().astype(tensor.numpy().dtype.newbyteorder(">")),
}


def answers(make):
    """One number of each kind of problem, from inputs in the form that `make` gives them."""
    target, features, weight, bias = (make(part) for part in (CASE.target, CASE.features, CASE.weight, CASE.bias))
    problem = LayerPeeled(target, gamma=0.3, class_weight=make(torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)))
    times = make(torch.tensor([0, 3, 10]))
    yield problem.flow(features, weight, bias).loss(times)
    yield problem.descent(features, weight, bias, momentum=0.5).distance(times)
    yield problem.anchored(features, weight, bias).accuracy(times)
    kernel = problem.kernel_flow(features, weight, make(KERNEL), bias=bias)
    yield kernel.loss(times)
    yield kernel.predict(make(KERNEL[:2]), make(CASE.features[:2]), times)
    yield Spherical(target, weight).descent(features, lr=0.5).loss(times)
    yield minibatch_moments(target, None, features, weight, batch_size=2).loss(times)
    yield problem.flow(features, weight).time_to(make(torch.tensor([0.1, 0.01], dtype=torch.float64)))
    yield summarize([(features, target)], 3).reduced()
    yield symmetric_noise(target, 3, 0.1)
    yield class_conditional_noise(target, make(torch.full((3, 3), 1 / 3, dtype=torch.float64)))


@pytest.mark.parametrize("form", [name for name in AS if name != "tensor"])
def test_arrays_and_lists_give_what_tensors_give(form):
    for number, (given, expected) in enumerate(zip(answers(AS[form]), answers(AS["tensor"]), strict=True)):
        assert torch.equal(given, expected), number


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_keep_their_dtype_and_lists_follow_them(dtype):
    features = CASE.features.numpy().astype(dtype)
    path = LayerPeeled(CASE.target.tolist()).flow(features, CASE.weight.tolist(), CASE.bias.tolist())
    state = path.at(3.0)
    assert {state.features.dtype, state.weight.dtype, state.bias.dtype} == {torch.from_numpy(features).dtype}


def test_lists_alone_are_double_precision_whatever_torch_thinks():
    assert torch.get_default_dtype() == torch.float32
    path = LayerPeeled([0, 1]).flow([[1, 0], [0, 1]], [[0.1, 0.2], [0.3, 0.4]])
    assert path.loss(1.0).dtype == torch.float64
    assert path.loss([0.0, 1.0]).shape == (2,)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_labels_may_be_integers_of_any_kind(kind):
    assert LayerPeeled(CASE.target.numpy().astype(kind)).num_classes == 3


def test_the_number_of_classes_is_that_of_the_labels():
    assert LayerPeeled(torch.tensor([0, 2, 1])).num_classes == 3
    assert LayerPeeled([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]).num_classes == 4
    assert LayerPeeled(torch.tensor([0, 1, 2]), 3).singular_values.equal(LayerPeeled([0, 1, 2]).singular_values)
    with pytest.raises(ValueError, match="none: 1"):
        LayerPeeled([0, 2])
    with pytest.raises(ValueError, match="at least 2, got 1"):
        LayerPeeled([0, 0])


PROGRAM = """
import numpy as np
import torch
from unhinge import LayerPeeled, Schedule, Spherical, cosine, minibatch_moments
from unhinge.theory import AnchoredPath, KernelPath, LinearPath, Path, SphericalPath

problem = LayerPeeled([0, 1, 2], gamma=0.1, class_weight="sqrt")
array = np.eye(3)
tensor = torch.eye(3, dtype=torch.float64)
def falls(time: float) -> float:
    return 0.1 / (1 + time)
flow: LinearPath = problem.flow(array, tensor, [0.0, 0.0, 0.0], lr=(0.1, cosine(0.1, total=10)))
descent = problem.descent(tensor, tensor, lr=lambda time: 0.1 / (1 + time), momentum=0.9)
fixed: AnchoredPath = problem.anchored([[1, 0, 0], [0, 1, 0], [0, 0, 1]], tensor, lr=falls)
kernel: KernelPath = problem.kernel_flow(tensor, tensor, lambda rows: rows)
sphere: SphericalPath = Spherical(torch.arange(3), tensor).descent(tensor, lr=np.float64(0.1))
paths: list[Path] = [flow, descent, fixed, kernel, sphere]
for path in paths:
    path.loss([0.0, 1.0]), path.accuracy(np.arange(3)), path.time_to(0.1).item(), path.rate(lr=1).item()
    path.at(3).features, path.collapse(range(3))["nc3"], path.correct(torch.arange(3)), path.labels
problem.modes(lr=0.1, momentum=0.9).growth
minibatch_moments([0, 1, 2], None, tensor, array).growth(lr=(0.1, 0.2))
"""

MISTAKES = {
    'problem.flow(tensor, tensor, lr="0.1")': "arg-type",
    'problem.descent(tensor, tensor, lr=(0.1, "fast"))': "arg-type",
    'problem.anchored(tensor, tensor, lr="0.1")': "arg-type",
    'problem.kernel_flow(tensor, tensor, tensor, lr="0.1")': "arg-type",
    'Spherical([0, 1, 2], tensor).flow(tensor, lr="0.1")': "arg-type",
    'minibatch_moments([0, 1, 2], None, tensor, tensor, lr="0.1")': "arg-type",
    'problem.modes(lr="0.1")': "arg-type",
    'problem.flow("features.npy", tensor)': "arg-type",
    'LayerPeeled("labels")': "arg-type",
    'LayerPeeled([0, 1], gamma="large")': "arg-type",
    'flow.loss("soon")': "arg-type",
    'flow.growth(lr="0.1")': "arg-type",
    'fixed.time_to("near")': "arg-type",
    'kernel.predict(tensor, tensor, "soon")': "arg-type",
    'sphere.at("soon")': "arg-type",
    'cosine("0.1", total=10)': "arg-type",
    "flow.at(1.0).weights": "attr-defined",
}


def test_a_string_in_the_place_of_a_number_is_caught_before_it_runs(tmp_path):
    """``mypy --strict`` of a program that uses the public door: no error in its right half, one per line after it."""
    pytest.importorskip("mypy", reason="pip install mypy")
    (tmp_path / "program.py").write_text(PROGRAM + "\n".join(MISTAKES) + "\n")
    source = File(unhinge.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-color-output", "--no-incremental", "program.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(source), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    first = PROGRAM.count("\n") + 1
    said = {line.split(":")[1]: line for line in done.stdout.splitlines() if line.startswith("program.py:")}
    wrong = {str(first + number): kind for number, kind in enumerate(MISTAKES.values())}
    assert set(said) == set(wrong), done.stdout + done.stderr
    for number, kind in wrong.items():
        assert f"[{kind}]" in done.stdout.split(f"program.py:{number}:")[1].splitlines()[0]
