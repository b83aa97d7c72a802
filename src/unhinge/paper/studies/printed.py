"""The numbers of the paper's tables, in percent, as printed; what it calls UL is our PAL."""

from __future__ import annotations

from unhinge.training.recipes import Method

__all__ = ["IMBALANCED_STEP", "LONG_TAILED", "OOD", "OOD_PENALTY", "RATIOS", "SCORES"]

RATIOS = (100, 50, 20, 10, 1)
SCORES = ("softmax", "energy", "norm")

# Table tab:lt-cifar, by data set and row: accuracy at each of RATIOS. Its cross-entropy rows are also the long-tailed
# halves of tab:imbalanced-cifar-10 and -100.
LONG_TAILED: dict[str, dict[Method, tuple[float, ...]]] = {
    "cifar10": {
        Method("ce"): (67.81, 72.93, 83.97, 88.37, 95.28),
        Method("ce", penalty=5e-6): (67.84, 72.85, 83.17, 89.06, 95.27),
        Method("ce", penalty=1e-5): (67.74, 76.14, 84.17, 89.19, 95.23),
        Method("ce", penalty=5e-5): (69.74, 77.29, 84.92, 88.64, 95.39),
        Method("pal"): (72.60, 77.20, 85.46, 89.29, 95.23),
        Method("pal", penalty=1e-7): (71.85, 78.80, 85.76, 89.68, 95.33),
        Method("pal", penalty=5e-7): (73.47, 79.54, 86.28, 89.36, 95.14),
        Method("pal", penalty=1e-6): (73.71, 79.40, 86.12, 89.43, 95.50),
        Method("pal", penalty=5e-6): (71.13, 78.90, 85.33, 89.20, 95.10),
    },
    "cifar100": {
        Method("ce"): (33.37, 39.40, 42.96, 56.38, 75.42),
        Method("ce", penalty=5e-6): (36.00, 41.92, 50.75, 60.13, 76.48),
        Method("ce", penalty=1e-5): (36.61, 42.36, 49.21, 58.91, 77.34),
        Method("ce", penalty=5e-5): (34.88, 42.74, 54.72, 60.84, 76.19),
        Method("pal"): (39.20, 45.81, 54.66, 59.92, 75.37),
        Method("pal", penalty=1e-7): (41.39, 46.13, 55.25, 61.15, 75.18),
        Method("pal", penalty=5e-7): (41.85, 47.58, 54.00, 61.31, 75.51),
        Method("pal", penalty=1e-6): (40.85, 47.07, 55.71, 61.47, 75.84),
        Method("pal", penalty=5e-6): (41.87, 45.83, 55.92, 60.87, 77.20),
    },
}

# The step halves of tab:imbalanced-cifar-10 and -100, at ratios 100, 50, 20, 10.
IMBALANCED_STEP: dict[str, dict[Method, tuple[float, ...]]] = {
    "cifar10": {
        Method("ce"): (61.24, 68.10, 78.73, 85.49),
        Method("ce", penalty=5e-6): (60.79, 68.41, 80.20, 86.69),
        Method("ce", penalty=1e-5): (61.50, 67.71, 80.97, 87.18),
        Method("ce", penalty=5e-5): (60.69, 70.27, 81.27, 87.17),
    },
    "cifar100": {
        Method("ce"): (40.89, 42.69, 51.92, 57.52),
        Method("ce", penalty=5e-6): (41.90, 43.85, 47.80, 56.74),
        Method("ce", penalty=1e-5): (41.48, 43.77, 49.64, 56.49),
        Method("ce", penalty=5e-5): (40.97, 43.20, 48.96, 57.97),
    },
}

# Table tab:ood-cifar-unhinged, by data set and row: (FPR95, AUROC, AUPR), each by the scores of SCORES.
Triple = tuple[float, float, float]
OOD: dict[str, dict[Method, tuple[Triple, Triple, Triple]]] = {
    "cifar10": {
        Method("ce"): ((52.09, 43.04, 52.10), (91.67, 91.94, 89.54), (84.11, 82.80, 77.06)),
        Method("ce", penalty=1e-5): ((37.39, 27.87, 24.94), (93.90, 94.60, 94.17), (85.48, 85.34, 83.15)),
        Method("pal"): ((53.29, 53.33, 52.34), (87.72, 87.73, 89.45), (74.86, 74.83, 79.05)),
        Method("pal", penalty=5e-7): ((27.27, 27.24, 26.62), (94.27, 94.46, 95.12), (86.51, 86.60, 88.46)),
    },
    "cifar100": {
        Method("ce"): ((87.75, 89.84, 95.54), (71.01, 71.94, 59.54), (55.42, 56.69, 43.21)),
        Method("ce", penalty=1e-5): ((81.48, 81.41, 87.83), (77.02, 78.03, 73.91), (62.92, 63.66, 58.81)),
        Method("pal"): ((80.43, 76.86, 76.23), (66.97, 74.83, 76.19), (37.83, 45.07, 47.51)),
        Method("pal", penalty=5e-7): ((75.74, 74.64, 73.59), (75.21, 75.36, 76.80), (45.16, 45.27, 48.34)),
    },
}

# Table tab:ood-cifar: cross-entropy over the penalty.
OOD_PENALTY: dict[str, dict[Method, tuple[Triple, Triple, Triple]]] = {
    "cifar10": {
        Method("ce"): OOD["cifar10"][Method("ce")],
        Method("ce", penalty=1e-6): ((54.00, 43.72, 51.45), (91.44, 92.12, 89.08), (82.31, 81.77, 74.16)),
        Method("ce", penalty=5e-6): ((45.37, 33.92, 26.93), (93.08, 93.78, 94.03), (84.31, 83.73, 82.79)),
        Method("ce", penalty=1e-5): OOD["cifar10"][Method("ce", penalty=1e-5)],
    },
    "cifar100": {
        Method("ce"): OOD["cifar100"][Method("ce")],
        Method("ce", penalty=1e-6): ((82.08, 82.57, 88.77), (75.36, 76.28, 68.83), (61.40, 61.90, 51.58)),
        Method("ce", penalty=5e-6): ((79.01, 78.68, 85.94), (78.70, 79.15, 70.32), (62.58, 62.39, 48.39)),
        Method("ce", penalty=1e-5): OOD["cifar100"][Method("ce", penalty=1e-5)],
    },
}
