"""Features and prototypes moving, seen in the plane (or space) of a few classes.

The flow acts on rows, so a projection of the start moves as the projection of the path: the picture is solved in two
or three dimensions, whatever p is.
"""

from __future__ import annotations

import torch

from unhinge.web.panels import Moving, Panel
from unhinge.web.script import Script

__all__ = ["FRAMES", "PER_CLASS", "basis_line", "moving_panel", "shown_classes"]

FRAMES = 40
PER_CLASS = 12  # examples drawn of each class


def shown_classes(num_classes: int, axes: int) -> list[int]:
    """One class more than axes, from the first to the last; their simplex spans the picture.

    Example:
        >>> shown_classes(10, 2), shown_classes(2, 3)
        ([0, 4, 9], [0, 1])
    """
    wanted = min(axes + 1, num_classes)
    return sorted({round(i * (num_classes - 1) / (wanted - 1)) for i in range(wanted)})


def basis_line(final: str, classes: list[int], axes: int) -> str:
    """Python for orthonormal columns `basis (p, axes)` of the span of these classes' prototypes in `final`, their mean
    taken away. Where they coincide the initial ones decide, and at last the axes: a picture needs some plane.
    """
    return (
        f"c = {classes}\nf = {final}[c]\nf = (f - f.mean(0) + 1e-9 * weight[c])[:-1]\n"
        f"f = torch.cat([f, 1e-12 * torch.eye({axes}, f.shape[1], dtype=f.dtype)])\n"
        f"basis = torch.linalg.qr(f.mT).Q[:, :{axes}]"
    )


def moving_panel(script: Script, classes: list[int], unit: str, reach: float | None = None) -> Panel:
    """The `curves` of a script as a moving picture: ``class c`` and ``prototype c``, each (moments, points, axes).

    A moment at which something is not finite (norms that overflow, or that vanish) is left out.
    """
    curves = script["curves"]
    moments = script["x"]
    groups: list[tuple[str, int, str]] = []
    points: list[torch.Tensor] = []
    for place, c in enumerate(classes):
        for name, symbol in ((f"class {c}", "dot"), (f"prototype {c}", "star")):
            groups.append((name, place, symbol))
            points.append(curves[name][1])
    good = torch.stack([rows.flatten(1).isfinite().all(1) for rows in points]).all(0).tolist()
    # group, frame, axis, point; numpy's lists are made many times faster than torch's
    steps = [rows.mT.round(decimals=4).numpy().tolist() for rows in points]
    frames = [[group[i] for group in steps] for i in range(len(moments)) if good[i]]
    kept = [moment for moment, fine in zip(moments.tolist(), good, strict=True) if fine]
    widest = max((rows[torch.tensor(good)].abs().max().item() for rows in points), default=1.0) if frames else 1.0
    first = len(frames) // 8 if reach is None else min(len(frames) // 8, 2)
    size = 1.08 * max(widest, 1e-3) if reach is None else reach
    return Panel("", "", [], script.text, moving=Moving(kept, unit, groups, frames, size, first))
