"""The scores written down once more from their papers, in numpy, one example and one class at a time.

Read beside OpenOOD's postprocessors (vim, nci, fdbd, knn, mds and its tools, ebo, t2fnorm and its network), formula
by formula. The same: vim (origin -W^+ b, eigenvectors of the second moments about it beyond the leading D, the
scale), nci, energy, the scores of t2fnorm (logits of the features as they come, times a constant). Different, and
said in `unhinge.ood.formulas`: fdbd sums over the classes where its paper takes the mean, and may divide by the norm
of the feature; knn is minus the squared distance of unit vectors to which 1e-10 is added; mds has a factor of one
half. No file of OpenOOD has neco: its authors' own code is the reference there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import pinvh
from scipy.special import logsumexp

Array = NDArray[np.float64]


def softmax(h: Array, weight: Array, bias: Array) -> list[float]:
    answers = []
    for x in h:
        z = weight @ x + bias
        k = int(np.argmax(z))
        answers.append(z[k] - logsumexp(np.delete(z, k)))
    return answers


def energy(h: Array, weight: Array, bias: Array) -> list[float]:
    return [float(logsumexp(weight @ x + bias)) for x in h]


def norm(h: Array) -> list[float]:
    return [float(np.sqrt((x * x).sum())) for x in h]


def mahalanobis(h: Array, train: Array, labels: NDArray[np.int64]) -> list[float]:
    """Lee et al. 2018, eq. 1 and 2: one covariance, divided by the number of examples."""
    means = {c: train[labels == c].mean(0) for c in np.unique(labels)}
    apart = np.stack([x - means[c] for x, c in zip(train, labels, strict=True)])
    precision = pinvh(apart.T @ apart / len(train))
    return [max(-(x - mean) @ precision @ (x - mean) for mean in means.values()) for x in h]


def neco(h: Array, train: Array, dim: int) -> list[float]:
    """Ben Ammar et al. 2024, eq. 6, with the principal components of the centered training features."""
    _, _, components = np.linalg.svd(train - train.mean(0))
    projection = components[:dim]
    return [float(np.linalg.norm(projection @ x) / np.linalg.norm(x)) for x in h]


def nci(h: Array, train: Array, weight: Array, bias: Array, strength: float) -> list[float]:
    """Liu and Qin 2025."""
    mean, answers = train.mean(0), []
    for x in h:
        w = weight[np.argmax(weight @ x + bias)]
        cosine = w @ (x - mean) / (np.linalg.norm(w) * np.linalg.norm(x - mean))
        answers.append(cosine * np.linalg.norm(w) + strength * np.abs(x).sum())
    return answers


def fdbd(h: Array, train: Array, weight: Array, bias: Array) -> list[float]:
    """Liu and Qin 2024: distance to each hyperplane, as geometry has it."""
    mean, answers = train.mean(0), []
    for x in h:
        top = int(np.argmax(weight @ x + bias))
        distances = []
        for c in range(len(weight)):
            if c != top:
                normal = weight[top] - weight[c]
                distances.append(abs(normal @ x + bias[top] - bias[c]) / np.linalg.norm(normal))
        answers.append(np.mean(distances) / np.linalg.norm(x - mean))
    return answers


def vim(h: Array, train: Array, weight: Array, bias: Array, dim: int) -> list[float]:
    """Wang et al. 2022, section 4."""
    origin = -np.linalg.pinv(weight) @ bias
    values, vectors = np.linalg.eigh((train - origin).T @ (train - origin))
    residual = vectors[:, np.argsort(-values)[dim:]]
    project = residual @ residual.T
    norms = [np.linalg.norm(project @ (x - origin)) for x in train]
    alpha = sum((weight @ x + bias).max() for x in train) / sum(norms)
    return [float(logsumexp(weight @ x + bias) - alpha * np.linalg.norm(project @ (x - origin))) for x in h]


def knn(h: Array, train: Array, k: int) -> list[float]:
    """Sun et al. 2022."""
    bank = train / np.linalg.norm(train, axis=1, keepdims=True)
    return [-float(np.sort(np.linalg.norm(bank - x / np.linalg.norm(x), axis=1))[k - 1]) for x in h]
