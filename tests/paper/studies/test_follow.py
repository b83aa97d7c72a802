"""One run and what is measured of it."""

from __future__ import annotations

from pathlib import Path

from unhinge.paper.studies.follow import Task, follow, measured
from unhinge.training import Recipe


def test_a_later_question_about_unknown_images_trains_nothing_again(tmp_path: Path):
    plain = Task(Recipe(width=4, epochs=2, batch=102), None, str(tmp_path), None)
    first = follow(plain)
    log = tmp_path / plain.recipe.key / "times.jsonl"
    before = log.read_bytes()
    asked = Task(plain.recipe, "patches", str(tmp_path), None)
    assert measured(asked) is None
    second = follow(asked)
    assert log.read_bytes() == before
    assert second["curves"] == first["curves"]
    assert "ood" in second
    assert "ood" not in first
    assert measured(plain) == first
