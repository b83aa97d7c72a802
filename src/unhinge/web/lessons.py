"""Six lessons: a setting of the sliders each, and three sentences that tell what to look at."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LESSONS", "Lesson"]


class Lesson(NamedTuple):
    """A title, the address that sets the sliders, and the story."""

    title: str
    address: str
    story: str


LESSONS = (
    Lesson(
        "1 Collapse",
        "?view=free",
        "Ten classes of equal size are trained without decay. Press Play: the features of a class merge and settle on "
        "their prototype. The distance to that limit falls exponentially, with the slope that the theory predicts.",
    ),
    Lesson(
        "2 No minimum",
        "?view=free&feature_decay=0.01&weight_decay=0.01",
        "The loss has no smallest value, so the norms grow without end; look at the norms and at the critical decay. "
        "Raise both decays slowly until they reach it: there the norms settle. Above it everything shrinks to zero, "
        "but the direction converges as before.",
    ),
    Lesson(
        "3 Gamma",
        "?view=free&gamma=0.02",
        "γ is the weight of the wrong logits. Move it up: convergence is fastest at 1/(C-1) = 1/9. Above 2/(C-2) = "
        "0.25 all classes end on one vector, and accuracy falls to 1/C.",
    ),
    Lesson(
        "4 Long tail",
        "?view=noise&ratio=100",
        "The largest class has 100 times the examples of the smallest. Accuracy rises first and then falls: in the end "
        "only the two largest classes are right. The other curve is the same training with class weights n^(-1/2): "
        "all classes end right.",
    ),
    Lesson(
        "5 Momentum",
        "?view=free&optimizer=descent&momentum=0.9",
        "SGD with momentum 0.9 takes about a seventh of the steps here, a tenth at best, and ends in the same place. "
        "Pin the curves, set momentum to 0 and compare. The exponents of all modes grow by nearly the same factor.",
    ),
    Lesson(
        "6 Noise",
        "?view=noise&profile=balanced&noise=0.3",
        "Three labels in ten are wrong, drawn anew at each step, and the classes are balanced. Noise does not move the "
        "limit: it only slows training down, by the factor that is shown. Above the tolerated noise the common vector "
        "leads and the limit is another one.",
    ),
)
