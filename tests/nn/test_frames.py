"""Prototypes: what they are, how far apart, and what is possible at best."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations, product

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unhinge.nn import frames
from unhinge.nn.bounds import angle_bound
from unhinge.nn.frames import Separation, separation

# The frames are built in float64, and so tested.
simplex_etf = partial(frames.simplex_etf, dtype=torch.float64)
prototypes = partial(frames.prototypes, dtype=torch.float64)

EPS = 2.0**-52


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smallest_angle(rows: torch.Tensor) -> float:
    """The definition, pair by pair."""
    pairs = combinations(rows.double(), 2)
    return min(math.acos(max(-1.0, min(1.0, (torch.dot(a, b) / (a.norm() * b.norm())).item()))) for a, b in pairs)


# ---- the simplex ----------------------------------------------------------------------------------------------------


@given(st.integers(2, 40), st.integers(0, 30), st.integers(0, 1000))
def test_a_simplex_has_unit_rows_equal_angles_and_no_sum(classes, spare, seed):
    """[eq: simplex]."""
    frame = simplex_etf(classes, classes - 1 + spare, seeded(seed))
    gram = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1.0)
    assert (frame @ frame.T - gram).abs().max() < 16 * EPS
    assert frame.sum(0).abs().max() < 8 * EPS * math.sqrt(classes)


@pytest.mark.parametrize(("classes", "dim"), [(512, 511), (1000, 1024), (100, 2048)])
def test_a_large_simplex_is_as_exact_as_a_small_one(classes, dim):
    frame = simplex_etf(classes, dim, seeded())
    gram = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1.0)
    assert (frame @ frame.T - gram).abs().max() < 64 * EPS
    assert frame.sum(0).abs().max() < 64 * EPS


def test_two_classes_on_a_line_are_opposite_points():
    assert sorted(simplex_etf(2, 1, seeded()).flatten().tolist()) == [-1.0, 1.0]


def test_the_generator_decides_the_frame():
    assert torch.equal(simplex_etf(5, 8, seeded(1)), simplex_etf(5, 8, seeded(1)))
    assert not torch.allclose(simplex_etf(5, 8, seeded(1)), simplex_etf(5, 8, seeded(2)))
    torch.manual_seed(3)
    first = simplex_etf(5, 8)
    torch.manual_seed(3)
    assert torch.equal(first, simplex_etf(5, 8))


def test_the_rotation_prefers_no_direction():
    """First and second moments of a vertex that is uniform on the sphere: 0 and I/p; QR without signs gives neither."""
    generator = seeded()
    rows = torch.stack([simplex_etf(4, 3, generator)[0] for _ in range(4000)])
    assert rows.mean(0).abs().max() < 0.04  # five standard deviations of the mean
    assert (rows.T @ rows / len(rows) - torch.eye(3, dtype=torch.float64) / 3).abs().max() < 0.03


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_frame_is_rounded_only_at_the_end(dtype):
    frame = simplex_etf(6, 9, seeded(), dtype=dtype)
    assert frame.dtype == dtype
    assert torch.equal(frame, simplex_etf(6, 9, seeded()).to(dtype))


@pytest.mark.parametrize(("classes", "dim"), [(5, 3), (3, 1), (1000, 64)])
def test_a_simplex_that_does_not_fit_points_to_prototypes(classes, dim):
    with pytest.raises(ValueError, match=rf"dim >= {classes - 1}, got dim={dim}.*prototypes\({classes}, {dim}\)"):
        simplex_etf(classes, dim)


@pytest.mark.parametrize("make", [frames.simplex_etf, frames.prototypes])
@pytest.mark.parametrize(("classes", "dim", "what"), [(1, 4, "num_classes"), (0, 4, "num_classes"), (3, 0, "dim")])
def test_sizes_that_mean_nothing_are_refused(make, classes, dim, what):
    with pytest.raises(ValueError, match=what):
        make(classes, dim)


# ---- beyond it ------------------------------------------------------------------------------------------------------


@given(st.integers(2, 24), st.integers(2, 10), st.integers(0, 100), st.sampled_from(["auto", "random"]))
def test_prototypes_have_unit_rows_and_no_sum(classes, dim, seed, method):
    rows = prototypes(classes, dim, seeded(seed), method=method)
    assert rows.shape == (classes, dim)
    assert (rows.norm(dim=1) - 1).abs().max() < 8 * EPS
    assert rows.sum(0).norm() < 32 * EPS * classes


@given(st.integers(2, 12), st.data(), st.integers(0, 100))
def test_up_to_twice_the_dimension_the_smallest_angle_is_the_largest_possible(dim, data, seed):
    classes = data.draw(st.integers(2, 2 * dim))
    rows, report = prototypes(classes, dim, seeded(seed), report=True)
    best = math.acos(-1 / (classes - 1)) if classes <= dim + 1 else math.pi / 2
    assert dim == 2 or report.bound == pytest.approx(best, abs=1e-15)
    assert smallest_angle(rows) == pytest.approx(best, abs=1e-7)  # acos near its ends
    assert report.ratio == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize(
    ("classes", "dim", "method"),
    [
        (4, 3, "simplex"),
        (5, 3, "orthogonal simplices"),
        (6, 3, "cross-polytope"),
        (7, 2, "polygon"),
        (7, 3, "optimized"),
        (4097, 3, "random"),
    ],
)
def test_the_report_names_the_method(classes, dim, method):
    rows, report = prototypes(classes, dim, seeded(), report=True)
    assert report.method == method
    assert report.smallest_angle <= report.bound * (1 + 1e-14)
    assert torch.equal(rows, prototypes(classes, dim, seeded()))


@pytest.mark.parametrize(("classes", "dim", "degrees"), [(12, 3, 63.4349), (27, 6, 75.5225)])
def test_optimizing_finds_the_best_arrangements_known(classes, dim, degrees):
    """The icosahedron and the 27 lines."""
    rows = prototypes(classes, dim, seeded())
    assert math.degrees(smallest_angle(rows)) == pytest.approx(degrees, abs=0.02)


@pytest.mark.parametrize(("classes", "dim", "degrees"), [(7, 3, 74.9), (9, 4, 79.0), (13, 3, 56.5)])
def test_few_vectors_keep_their_distance_although_they_must_sum_to_zero(classes, dim, degrees):
    """Without that demand 77.87, 80.68 and 57.14 are known; moving those to zero sum would leave 71, 74 and 54."""
    assert math.degrees(smallest_angle(prototypes(classes, dim, seeded()))) > degrees


@pytest.mark.parametrize(("classes", "dim", "least"), [(30, 8, 0.9), (100, 16, 0.93), (200, 32, 0.94)])
def test_optimizing_comes_near_the_bound_and_far_beyond_chance(classes, dim, least):
    _, searched = prototypes(classes, dim, seeded(), report=True, method="optimized")
    _, drawn = prototypes(classes, dim, seeded(), report=True, method="random")
    assert searched.ratio > least
    assert searched.smallest_angle > 1.2 * drawn.smallest_angle


def test_a_line_has_room_for_two_classes_only():
    assert prototypes(2, 1, seeded()).abs().tolist() == [[1.0], [1.0]]
    with pytest.raises(ValueError, match="only two unit vectors"):
        prototypes(3, 1)


def test_an_unknown_method_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="auto, optimized, random, got 'best'"):
        prototypes(30, 4, method="best")


# ---- measuring ------------------------------------------------------------------------------------------------------


@given(st.integers(2, 12), st.integers(1, 5), st.integers(0, 1000))
def test_separation_is_the_smallest_angle_over_all_pairs(classes, dim, seed):
    rows = torch.randn(classes, dim, generator=seeded(seed), dtype=torch.float64) * 3
    report = separation(rows)
    assert report.smallest_angle == pytest.approx(smallest_angle(rows), abs=1e-7)
    assert report.method == "given"
    assert report.smallest_angle <= report.bound * (1 + 1e-12) or dim == 1


def test_separation_over_several_blocks_finds_the_closest_pair():
    rows = torch.nn.functional.normalize(torch.randn(3000, 16, generator=seeded(), dtype=torch.float64), dim=1)
    rows[2990] = rows[7] + 1e-9 * rows[8]
    assert separation(rows).smallest_angle == pytest.approx(1e-9, rel=0.1)


def test_a_zero_row_has_no_angle():
    with pytest.raises(ValueError, match="not zero"):
        separation(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"weight must be a torch.Tensor, got ndarray"):
        separation(np.eye(3))
    with pytest.raises(ValueError, match="shape"):
        separation(torch.zeros(3))


def test_a_report_is_frozen_and_reads_well():
    report = separation(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]]))
    assert str(report).startswith("4 prototypes of dimension 2, given: smallest angle 90.00°, 100.0% of the bound")
    with pytest.raises(AttributeError):
        report.method = "other"  # type: ignore[misc]
    assert isinstance(report, Separation)


# ---- bounds ---------------------------------------------------------------------------------------------------------

SHARP = {
    "icosahedron": (12, 3, 1 / math.sqrt(5)),
    "Clebsch": (16, 5, 1 / 5),
    "Schläfli": (27, 6, 1 / 4),
    "28 bitangents": (56, 7, 1 / 3),
    "E8": (240, 8, 1 / 2),
    "McLaughlin": (275, 22, 1 / 6),
    "equiangular": (552, 23, 1 / 5),
    "Conway": (4600, 23, 1 / 3),
    "Leech": (196_560, 24, 1 / 2),
}


@pytest.mark.parametrize("name", SHARP)
def test_the_bound_is_met_by_the_codes_known_to_be_sharp(name):
    classes, dim, cosine = SHARP[name]
    assert angle_bound(classes, dim).angle == pytest.approx(math.acos(cosine), abs=1e-13)


def test_the_shortest_vectors_of_e8_meet_their_bound():
    halves = [torch.tensor(s) / 2 for s in product((-1.0, 1.0), repeat=8) if math.prod(s) > 0]
    whole = [
        torch.eye(8)[i] * a + torch.eye(8)[j] * b
        for i, j in combinations(range(8), 2)
        for a in (-1, 1)
        for b in (-1, 1)
    ]
    report = separation(torch.stack(halves + whole))
    assert report.num_classes == 240
    assert report.ratio == pytest.approx(1, abs=1e-14)


# Best arrangements known (Sloane's tables): classes, dimension, degrees.
KNOWN = [
    (7, 3, 77.8695),
    (13, 3, 57.1367),
    (20, 3, 47.4310),
    (24, 3, 43.6908),
    (24, 4, 60.0),
    (120, 4, 36.0),
    (9, 4, 80.676),
]


@pytest.mark.parametrize(("classes", "dim", "degrees"), KNOWN)
def test_no_known_arrangement_beats_the_bound_and_the_bound_is_near(classes, dim, degrees):
    """[eq: angle-bound]."""
    assert degrees <= math.degrees(angle_bound(classes, dim).angle) <= 1.07 * degrees


@given(st.integers(3, 40), st.integers(2, 100_000))
def test_the_bound_falls_as_classes_are_added_and_rises_with_the_dimension(dim, classes):
    here = angle_bound(classes, dim).angle
    assert angle_bound(classes + 1, dim).angle <= here * (1 + 1e-12)
    assert angle_bound(classes, dim + 1).angle >= here * (1 - 1e-12)


@pytest.mark.parametrize(("classes", "dim"), [(50, 3), (1000, 4), (1000, 10), (10_000, 64)])
def test_the_bound_is_better_than_counting_the_area_of_caps(classes, dim):
    """Caps of half the smallest angle do not overlap, so C of them fit on the sphere: true, simple and weaker."""

    def share(angle):
        density = lambda x: mp.sin(x) ** (dim - 2)  # noqa: E731
        return mp.quad(density, [0, angle / 2]) / mp.quad(density, [0, mp.pi / 2, mp.pi])

    assert float(share(angle_bound(classes, dim).angle)) * classes <= 1


def test_the_default_dtype_is_that_of_torch():
    assert frames.simplex_etf(3, 4).dtype == torch.get_default_dtype()
    assert frames.prototypes(9, 4).dtype == torch.get_default_dtype()


@pytest.mark.parametrize("make", [frames.simplex_etf, frames.prototypes])
def test_whole_numbers_are_no_dtype_of_unit_vectors(make):
    with pytest.raises(ValueError, match="dtype must be a floating one"):
        make(3, 4, dtype=torch.int64)
