"""Uses every room of the core. It runs where nothing but torch, numpy and the package is installed."""

import io
import math

import torch

from unhinge import LayerPeeled, Spherical, cosine, minibatch_moments, summarize
from unhinge.metrics import expected_calibration_error, neural_collapse, ood_metrics, ood_scores
from unhinge.monitor import Monitor
from unhinge.nn import (
    ETFHead,
    FeatureNormPenalty,
    ManyClassHead,
    UnhingedLoss,
    nearest_prototype,
    prototypes,
    replace_head,
)
from unhinge.nn.backbones import build_model

torch.manual_seed(0)
features, labels = torch.randn(60, 8, dtype=torch.float64), torch.arange(60) % 4
weight = torch.randn(4, 8, dtype=torch.float64)
problem = LayerPeeled(labels, 4)
for path in (
    problem.flow(features, weight, lr=0.1),
    problem.descent(features, weight, lr=cosine(0.1, 100), momentum=0.9),
    problem.anchored(features, weight),
    problem.kernel_flow(features, weight, torch.eye(60, dtype=torch.float64)),
    Spherical(labels, weight).descent(features),
):
    assert math.isfinite(path.loss(3)), path
summary = summarize([(features[:30], labels[:30]), (features[30:], labels[30:])], 4)
assert math.isfinite(LayerPeeled.from_summary(summary).flow(summary, weight).loss(3))
assert minibatch_moments

model = build_model("resnet20", 4, width=4).double()
replace_head(model, ETFHead, remove_last_relu=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), ETFHead(8, 4)).double()
monitor = Monitor(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = UnhingedLoss()(model(features), labels) + FeatureNormPenalty(1e-3)(features)
monitor.update(labels)
loss.backward()
optimizer.step()
assert monitor.compute()
saved = io.BytesIO()
torch.save(model.state_dict(), saved)
many = ManyClassHead(8, 1000)
many(features.float(), labels).backward()
many.step(0.1)
assert nearest_prototype(features.float(), prototypes(20, 10)[:, :8]) is not None
assert neural_collapse(features, weight, labels)
logits = features @ weight.T
assert expected_calibration_error(logits.softmax(1), labels) >= 0
assert ood_metrics(ood_scores(logits)["energy"], ood_scores(-logits)["energy"])
print("done")
