"""Neural collapse, norms and the theory's prediction, epoch by epoch, during anyone's training.

>>> import torch
>>> from torch import nn
>>> from unhinge.monitor import Monitor
>>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
>>> loss_fn = nn.CrossEntropyLoss()
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> batches = [(torch.randn(12, 8), torch.arange(12) % 3) for _ in range(2)]
>>> # a flat dict of floats, for any logger
>>> with Monitor(model, loss=loss_fn, lr=0.1) as monitor:
...     for epoch in range(2):
...         for images, labels in batches:
...             optimizer.zero_grad()
...             loss_fn(model(images), labels).backward()
...             optimizer.step()
...         numbers = monitor.compute()
>>> numbers["examples"], sorted(numbers)[-2:]
(24.0, ['weight_norm_ratio', 'weight_norm_rms'])

For Lightning: ``Trainer(callbacks=[MonitorCallback()])``.
"""

from unhinge.monitor.hook import Monitor
from unhinge.monitor.lightning import MonitorCallback

__all__ = ["Monitor", "MonitorCallback"]
