"""Models with our heads leave Python: torch.export, ONNX in onnxruntime, dynamic int8. TorchScript is not chased."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unhinge.nn import ETFHead, ManyClassHead

DIM, CLASSES = 16, 10


def plain() -> nn.Module:
    return ETFHead(DIM, CLASSES)


def normalized() -> nn.Module:
    return ETFHead(DIM, CLASSES, normalize=True, scale=4.0)


def materialized() -> nn.Module:
    """A trained ManyClassHead as the Linear it stands for: what a server wants."""
    head = ManyClassHead(DIM, CLASSES, weight_decay=1e-3)
    for _ in range(3):
        head(torch.randn(8, DIM), torch.randint(CLASSES, (8,))).backward()
        head.step(0.5)
    linear = nn.Linear(DIM, CLASSES, bias=False)
    with torch.no_grad():
        linear.weight.copy_(head.rows(torch.arange(CLASSES)))
    features = torch.randn(5, DIM)
    torch.testing.assert_close(linear(features), head.logits(features))
    return linear


@pytest.fixture(params=[plain, normalized, materialized])
def model(request) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 32), nn.GELU(), nn.Linear(32, DIM), request.param()).eval()


@pytest.fixture
def images() -> Tensor:
    batch = torch.randn(6, 3, 2, 2)
    batch[0] = 0  # the first features are those of the biases alone
    return batch


def test_an_exported_program_gives_the_same_logits_for_any_batch(model, images):
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},))
    for count in (1, 2, 6):
        torch.testing.assert_close(program.module()(images[:count]), model(images[:count]), rtol=0, atol=1e-5)


def test_onnxruntime_gives_the_same_logits_for_any_batch(model, images, tmp_path):
    pytest.importorskip("onnxscript", reason="pip install onnx onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    with warnings.catch_warnings():  # torch's exporter warns about its own parts
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (images,),
            tmp_path / "model.onnx",
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=1024)},),
            dynamo=True,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 6):
        (logits,) = session.run(["logits"], {"images": images[:count].numpy()})
        np.testing.assert_allclose(logits, model(images[:count]).detach().numpy(), rtol=0, atol=1e-5)


def test_a_zero_feature_stays_zero_outside_python(tmp_path):
    """Length 1 is no length for a zero vector: 0/0 would be NaN in any runtime that lost the guard."""
    head, zero = normalized().eval(), torch.zeros(2, DIM)
    program = torch.export.export(head, (zero,))
    assert torch.equal(program.module()(zero), torch.zeros(2, CLASSES))
    pytest.importorskip("onnxscript", reason="pip install onnx onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(head, (zero,), tmp_path / "head.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "head.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: zero.numpy()})
    assert not logits.any()


def test_dynamic_int8_does_not_touch_the_head_and_hardly_its_logits(model, images):
    """torch quantizes nn.Linear: the layers before. A fixed head keeps its prototypes in full precision."""
    with warnings.catch_warnings():  # torch.ao moves to torchao; the call is what is in use
        warnings.simplefilter("ignore")
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    before, after = model(images), small(images)
    kinds = [type(layer).__module__ for layer in small]
    assert "quantized" in kinds[1]
    assert "quantized" in kinds[3]
    if isinstance(model[-1], ETFHead):
        assert isinstance(small[-1], ETFHead)
        assert torch.equal(small[-1].weight, model[-1].weight)
    # 127 steps for the largest entry of a row and of an input: about a percent in each layer.
    assert (after - before).norm() < 0.05 * before.norm()


def test_onnxruntime_quantizes_the_heads_too(model, images, tmp_path):
    pytest.importorskip("onnxscript", reason="pip install onnx onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    quantization = pytest.importorskip("onnxruntime.quantization", reason="pip install onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, (images,), dynamo=True, verbose=False).model_proto
        # The exporter notes shapes of weights that it transposes later; without the notes they are inferred anew.
        del program.graph.value_info[:]
        quantization.quantize_dynamic(program, tmp_path / "small.onnx", weight_type=quantization.QuantType.QInt8)
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    before = model(images).detach()
    assert (torch.from_numpy(logits) - before).norm() < 0.05 * before.norm()
