"""Characters in typefaces: what is a class, what is left out, and what is held out."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fontTools.ttLib import TTFont
from PIL import Image, ImageDraw, ImageFont

from unhinge.data import DataError, load
from unhinge.data.glyphs import Face, font_faces, glyphs

FACES = font_faces()


@pytest.fixture(scope="module")
def whole():
    return load("glyphs")


def test_the_twelve_faces_of_dejavu_and_the_upright_ones_held_out():
    assert len(FACES) == 12
    assert {face.path.stem for face in FACES if face.held_out} == {"DejaVuSans", "DejaVuSansMono", "DejaVuSerif"}
    for face in FACES:
        assert [file.sha256 for file in face.files] == [hashlib.sha256(face.path.read_bytes()).hexdigest()]
        assert face.files[0].sha256 in str(face)


def test_every_class_is_in_every_face_once(whole):
    assert whole.num_classes > 2000
    assert len(whole.training) == 9 * whole.num_classes
    assert torch.equal(whole.training.counts, torch.full((whole.num_classes,), 9))
    assert torch.equal(whole.test.counts, torch.full((whole.num_classes,), 3))
    assert not whole.training.mirrored


def test_an_image_is_the_character_on_its_baseline(whole):
    """Drawn here anew, one character in one face."""
    face = next(face for face in FACES if face.path.stem == "DejaVuSerif")
    canvas = Image.new("L", (24, 24))
    font = ImageFont.truetype(str(face.path), 18, layout_engine=ImageFont.Layout.BASIC)
    ImageDraw.Draw(canvas).text((12, 18), "g", fill=255, font=font, anchor="ms")
    label = whole.classes.index("g")
    position = [f.path.stem for f in FACES if f.held_out].index("DejaVuSerif")
    actual = whole.test.images[position * whole.num_classes + label, 0].numpy()
    assert np.array_equal(actual, np.asarray(canvas))


def test_characters_that_look_alike_are_one_class(whole):
    of = {character: name for name in whole.classes for character in name}
    assert of["A"] == of["\N{GREEK CAPITAL LETTER ALPHA}"] == of["\N{CYRILLIC CAPITAL LETTER A}"]
    assert of["A"] != of["B"]
    assert of[","] != of["'"]  # the same stroke, at another height
    assert sum(map(len, whole.classes)) == len(of)


def test_no_image_is_empty_and_no_two_classes_are_the_same_in_most_faces(whole):
    images = torch.cat([whole.training.images, whole.test.images]).view(12, whole.num_classes, -1)
    assert (images.amax(2) > 0).all()
    distinct = [len(torch.unique(face, dim=0)) for face in images]
    assert min(distinct) > 0.96 * whole.num_classes


def test_spaces_and_boxes_of_missing_glyphs_are_left_out(whole):
    characters = set("".join(whole.classes))
    assert not characters & {" ", "\N{NO-BREAK SPACE}", "\N{SOFT HYPHEN}", "\ufffe", "\ue000"}


def test_a_character_that_one_face_lacks_is_no_class():
    covered = []
    for face in FACES:
        with TTFont(face.path, lazy=True) as font:
            covered.append(set(font.getBestCmap()))
    some = set.union(*covered) - set.intersection(*covered)
    assert some
    characters = {ord(character) for name in glyphs().classes for character in name}
    assert not characters & some
    few = glyphs(fonts=[face.path for face in FACES[:4]])
    more = {ord(character) for name in few.classes for character in name}
    assert more & some
    assert more <= set.intersection(*covered[:4])


def test_own_fonts_come_from_files_and_folders_in_the_order_of_their_names(tmp_path):
    for face in FACES[:3]:
        shutil.copy(face.path, tmp_path)
    (tmp_path / "notes.txt").write_text("not a font")
    faces = font_faces([tmp_path, FACES[7].path])
    assert [face.path.name for face in faces] == [face.path.name for face in (*FACES[:3], FACES[7])]
    assert [face.held_out for face in faces] == [False, False, False, True]
    splits = load("glyphs", fonts=[tmp_path, FACES[7].path], image_size=16)
    assert splits.test.images.shape[1:] == (1, 16, 16)
    assert len(splits.training) == 3 * len(splits.test)


def test_a_font_under_two_names_is_one_typeface(tmp_path):
    """Else one drawing could be trained on and tested on."""
    for face in FACES[:4]:
        shutil.copy(face.path, tmp_path)
    shutil.copy(FACES[0].path, tmp_path / "zz copy.ttf")
    other_spelling = tmp_path / ".." / tmp_path.name
    faces = font_faces([tmp_path, *tmp_path.glob("*.ttf"), other_spelling])
    assert [face.path.name for face in faces] == [face.path.name for face in FACES[:4]]


def test_a_list_of_entries_decides_use_and_checksum(tmp_path):
    for face in FACES[:4]:
        shutil.copy(face.path, tmp_path)
    faces = font_faces([tmp_path])
    entries = [face.entry for face in faces]
    assert font_faces(entries) == faces
    swapped = [entries[3], *entries[:2], entries[2].replace(" train ", " test ")]
    assert [face.held_out for face in font_faces(swapped)] == [True, False, False, True]
    images = glyphs(fonts=entries, characters="41-5A").test.images
    assert torch.equal(images, glyphs(fonts=[tmp_path], characters="41-5A").test.images)
    shutil.copy(FACES[5].path, faces[1].path)
    with pytest.raises(DataError, match="not the font file it was"):
        font_faces(entries)
    with pytest.raises(ValueError, match="Name all in one way"):
        font_faces([entries[0], tmp_path])
    with pytest.raises(DataError, match="same use"):
        font_faces(entries[2:3])
    with pytest.raises(DataError, match="no font file"):
        font_faces([entry.replace(str(tmp_path), "nowhere") for entry in entries])


# ---- a typeface in several files -------------------------------------------------------------------------------------


def part_of(face: Face, keep: Callable[[int], bool], path: Path) -> Path:
    """A copy of the face's file that has only some of its characters."""
    with TTFont(face.path) as font:
        for table in font["cmap"].tables:
            table.cmap = {code: name for code, name in table.cmap.items() if keep(code)}
        font.save(path)
    return path


@pytest.fixture
def parted(tmp_path):
    """The first four faces, the second in two files: letters up to M, and those from L on."""
    low = part_of(FACES[1], lambda code: code <= ord("M"), tmp_path / f"{FACES[1].path.stem}-1.ttf")
    high = part_of(FACES[1], lambda code: code >= ord("L"), tmp_path / f"{FACES[1].path.stem}-2.ttf")
    return low, high, [FACES[0].path, FACES[2].path, FACES[3].path]


@pytest.mark.parametrize("order", [1, -1])
def test_a_typeface_in_two_files_is_the_typeface_in_one(parted, order):
    """Their characters are joined, and each image is that of the file that has it."""
    low, high, others = parted
    assert "Z" not in glyphs(fonts=[low, *others], characters="41-5A").classes
    joined = glyphs(fonts=["+".join(map(str, (low, high)[::order])), *others], characters="41-5A")
    whole = glyphs(fonts=[face.path for face in FACES[:4]], characters="41-5A")
    assert joined.classes == whole.classes == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    images, expected = (torch.cat([one.training.images, one.test.images]).view(4, 26, -1) for one in (joined, whole))
    assert all(any(torch.equal(image, face) for image in images) for face in expected)


def test_the_first_file_that_shows_a_character_wins(parted):
    """L and M are in both files. A file whose glyph is empty does not show it."""
    low, _, others = parted
    serif = next(face for face in FACES if face.path.stem == "DejaVuSerif")
    joined = glyphs(fonts=[f"{low}+{serif.path}", *others], characters="41-5A")
    alone = {path: glyphs(fonts=[path, *others], characters="41-4D") for path in (low, serif.path)}
    position = [face.path.stem for face in font_faces([low, *others])].index(low.stem)
    drawn = joined.training.images.view(3, 26, 24, 24)[position]
    assert torch.equal(drawn[:13], alone[low].training.images.view(3, 13, 24, 24)[position])
    with TTFont(low) as font:
        font["glyf"]["A"] = font["glyf"]["space"]
        font.save(low)
    assert "A" not in glyphs(fonts=[low, *others], characters="41-4D").classes
    filled = glyphs(fonts=[f"{low}+{serif.path}", *others], characters="41-5A").training.images.view(3, 26, 24, 24)
    shown = {face.path.stem: k for k, face in enumerate(font_faces([serif.path, *others]))}
    splits = glyphs(fonts=[serif.path, *others], characters="41-5A")
    every = torch.cat([splits.training.images, splits.test.images]).view(4, 26, 24, 24)
    assert torch.equal(filled[position][0], every[shown["DejaVuSerif"]][0])


def test_files_in_a_joined_typeface_are_no_typefaces_of_their_own(tmp_path):
    names = [shutil.copy(face.path, tmp_path) for face in FACES[:5]]
    faces = font_faces([tmp_path, f"{names[1]}+{names[4]}"])
    assert [[file.path.name for file in face.files] for face in faces] == [
        [Path(names[0]).name], [Path(names[1]).name, Path(names[4]).name], [Path(names[2]).name], [Path(names[3]).name]
    ]  # fmt: skip
    assert [face.held_out for face in faces] == [False, False, False, True]


def test_the_entry_of_a_joined_typeface_has_every_checksum_and_is_taken_again(tmp_path):
    names = [Path(shutil.copy(face.path, tmp_path)) for face in FACES[:5]]
    faces = font_faces([f"{names[0]}+{names[4]}#0", *names[1:4]])
    entries = [face.entry for face in faces]
    first, second = (hashlib.sha256(names[k].read_bytes()).hexdigest() for k in (0, 4))
    assert entries[0] == f"{names[0]} train sha256:{first}+{names[4]} sha256:{second}"
    assert str(faces[0]) == f"{names[0].name} train sha256:{first}+{names[4].name} sha256:{second}"
    assert font_faces(entries) == faces
    with pytest.raises(ValueError, match="must be told as"):
        font_faces([f"{entries[0]}+other.ttf", *entries[1:]])
    shutil.copy(FACES[5].path, names[4])
    with pytest.raises(DataError, match=f"{names[4].name} is not the font file it was"):
        font_faces(entries)


def test_a_plus_may_be_part_of_a_name(tmp_path):
    folder = tmp_path / "c++"
    folder.mkdir()
    names = [Path(shutil.copy(face.path, folder / f"{k}+{face.path.name}")) for k, face in enumerate(FACES[:5])]
    assert [face.path for face in font_faces(names)] == names
    faces = font_faces([f"{names[0]}+{names[1]}", *names[2:]])
    assert [[file.path for file in face.files] for face in faces] == [names[:2], *([name] for name in names[2:])]
    assert font_faces([face.entry for face in faces]) == faces


def test_drawing_again_gives_the_same_bytes():
    first, second = (glyphs(characters="41-5A") for _ in range(2))
    assert torch.equal(first.training.images, second.training.images)
    assert first.classes == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def test_training_faces_may_stay_undrawn():
    splits = load("glyphs", train=False)
    assert splits.train is None


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"fonts": ["nowhere.ttf"]}, "no font file or folder"),
        ({"fonts": [str(FACES[0].path)]}, "at least 4 typefaces"),
        ({"fonts": str(FACES[0].path)}, "must be a list"),
        ({"fonts": [f"{FACES[0].path}#x"]}, "number of a face"),
        ({"fonts": [f"{FACES[0].path}+nowhere.ttf"]}, "no font file or folder nowhere.ttf"),
        ({"fonts": [f"{FACES[0].path}+{FACES[0].path.parent}"]}, "is a folder. Name files"),
        ({"characters": "everything"}, "hexadecimal"),
        ({"characters": "4E00-9FA5"}, "characters in common"),
        ({"characters": "10FFF0-FFFFFFFFFFFF"}, "characters in common"),  # it ends with the last code point there is
        ({"image_size": 4}, "at least 8"),
        ({"image_size": 24.0}, "a whole number of at least 8"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, what):
    with pytest.raises(ValueError, match=what):
        glyphs(**options)


def test_a_broken_font_is_an_error_that_names_it(tmp_path):
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(Path(FACES[0].path).read_bytes()[:1000])
    with pytest.raises(DataError, match=r"broken\.ttf cannot be read as a font"):
        glyphs(fonts=[broken, *(face.path for face in FACES[:3])])


def test_a_font_whose_outlines_are_damaged_is_named_too(tmp_path):
    broken = tmp_path / "broken.ttf"
    content = bytearray(Path(FACES[0].path).read_bytes())
    with TTFont(FACES[0].path) as font:
        table = font.reader.tables["glyf"]
    content[table.offset : table.offset + table.length] = b"\x00\x7f" * (table.length // 2)
    broken.write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.ttf cannot draw"):
        glyphs(fonts=[broken, *(face.path for face in FACES[:3])], characters="41-5A")


def test_fonts_are_for_glyphs_only():
    with pytest.raises(ValueError, match="fonts and characters are for glyphs"):
        load("digits", fonts=["a.ttf"])
