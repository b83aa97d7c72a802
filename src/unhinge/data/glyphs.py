r"""Characters as they look in one typeface after another: thousands of classes, and typefaces never seen to test on.

Nothing is downloaded. Without further ado the faces are the twelve of DejaVu that come with matplotlib; any others are
named as files or folders, and one typeface may come in several files. A character is a class if every face has it.
Where two characters look the same in most faces, such as the Latin, the Greek and the Cyrillic A, they are one class.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unhinge.data.errors import DataError
from unhinge.data.images import ImageSet, Splits, channel_statistics

__all__ = ["Face", "FontFile", "font_faces", "glyphs"]

Fonts = Sequence[str | os.PathLike[str]]
_Place = tuple[tuple[Path, int], ...]  # the files of a typeface, each with the number of the face in it

_ENDINGS = (".ttf", ".otf", ".ttc", ".otc")
_FAMILIES = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif")  # of twelve faces; the display faces have few characters
_HELD_OUT = 4  # every fourth face, in the order of their names, is held out
_ENTRY = re.compile(r"(.+?)(?:#(\d+))? (train|test) sha256:([0-9a-f]{64})((?:\+.+)?)")
_FURTHER = re.compile(r"\+(.+?)(?:#(\d+))? sha256:([0-9a-f]{64})(?=\+|$)")
_NOTHING = 0x10FFFF  # not a character: what a font shows for it, it shows for everything that it lacks


@dataclass(frozen=True)
class FontFile:
    """One file of a typeface: where it is, which face of it is meant, and its checksum."""

    path: Path
    index: int  # in a collection (.ttc); 0 in other files
    sha256: str


@dataclass(frozen=True)
class Face:
    """One typeface: its files, the first of which that shows a character decides, and what it is used for."""

    files: tuple[FontFile, ...]
    held_out: bool  # tested on, not trained on

    @property
    def path(self) -> Path:
        """That of its first file, whose name places it among the others."""
        return self.files[0].path

    def __str__(self) -> str:
        return self._description([file.path.name for file in self.files])

    @property
    def entry(self) -> str:
        """All there is to know of it, as :func:`glyphs` takes it again: its paths, its use and its checksums."""
        return self._description([str(file.path) for file in self.files])

    def _description(self, names: Sequence[str]) -> str:
        """``A.ttf train sha256:...``, and for each further file ``+B.ttf sha256:...``."""
        use = f" {'test' if self.held_out else 'train'}"
        return "+".join(
            f"{name}{f'#{file.index}' if file.index else ''}{'' if k else use} sha256:{file.sha256}"
            for k, (name, file) in enumerate(zip(names, self.files, strict=True))
        )


def glyphs(
    *,
    fonts: Fonts | None = None,
    characters: str | None = None,
    image_size: int = 24,
    train: bool = True,
) -> Splits:
    """Characters in typefaces, grey images with the ink bright; every fourth face is held out to test on.

    Characters that some face lacks (no glyph, an empty one, or the box that stands for a missing one) are left out, and
    so are spaces, controls and private ones.

    Arguments:
        fonts: Font files (.ttf, .otf, .ttc) and folders of them, with their subfolders. Of a collection the first face
            is taken; `FILE#2` names another. `A.ttf+B.ttf` is one typeface in two files (or more): a character is
            drawn from the first of them that shows it, and none of them is a typeface of its own as well. None: the
            twelve faces of DejaVu that matplotlib ships. What :attr:`Face.entry` says of a face is taken as well: it
            decides the use, and the checksums have to hold.
        characters: Only those in these ranges of code points, such as "4E00-9FA5" or "41-5A,61-7A". None: all.
        image_size: Side in pixels. A character is drawn at three quarters of it, on its baseline.
        train: False leaves the faces to train on undrawn.

    Example:
        >>> splits = glyphs(characters="30-39")
        >>> splits.classes, tuple(splits.training.images.shape), len(splits.test)
        (('0', '1', '2', '3', '4', '5', '6', '7', '8', '9'), (90, 1, 24, 24), 30)
    """
    if type(image_size) is not int or image_size < 8:
        raise ValueError(
            f"image_size must be a whole number of at least 8 pixels to tell characters apart, got {image_size!r}."
        )
    faces = font_faces(fonts)
    names, drawn = _drawn(tuple(faces), characters, image_size)
    held_out = np.array([face.held_out for face in faces])
    training = torch.from_numpy(drawn[~held_out])
    mean, std = channel_statistics(training.flatten(0, 1)[:, None])

    def part(chosen: torch.Tensor) -> ImageSet:
        labels = torch.arange(len(names)).repeat(len(chosen))
        return ImageSet(chosen.flatten(0, 1)[:, None].contiguous(), labels, names, mean, std, mirrored=False)

    return Splits("glyphs", part(training) if train else None, part(torch.from_numpy(drawn[held_out])))


def font_faces(fonts: Fonts | None = None) -> tuple[Face, ...]:
    """The faces that :func:`glyphs` draws, in order, each with its checksum and whether it is held out.

    Example:
        >>> faces = font_faces()
        >>> len(faces), [face.path.stem for face in faces if face.held_out]
        (12, ['DejaVuSans', 'DejaVuSansMono', 'DejaVuSerif'])
    """
    if fonts is not None and isinstance(fonts, str | os.PathLike):
        raise ValueError(f"fonts must be a list of files and folders, got the single {fonts!r}. Write [{fonts!r}].")
    written = [] if fonts is None else [_ENTRY.fullmatch(os.fspath(font)) for font in fonts]
    if any(written):
        return _pinned(fonts or (), written)
    places = _embedded() if fonts is None else _named(fonts)
    if len(places) < _HELD_OUT:
        raise DataError(
            f"glyphs needs at least {_HELD_OUT} typefaces, one of them to test on, but found {len(places)}: "
            f"{', '.join(place[0][0].name for place in places) or 'none'}. Name more font files or folders."
        )
    return tuple(
        Face(
            tuple(FontFile(path, index, _checksum(path)) for path, index in place),
            held_out=k % _HELD_OUT == _HELD_OUT - 1,
        )
        for k, place in enumerate(places)
    )


def _pinned(fonts: Fonts, written: Sequence[re.Match[str] | None]) -> tuple[Face, ...]:
    """Faces as an earlier call told them."""
    faces = []
    for font, parts in zip(fonts, written, strict=True):
        if parts is None:
            raise ValueError(f"some fonts are named with use and checksum, but {font!r} is not. Name all in one way.")
        *first, use, checksum, rest = parts.groups()
        if _FURTHER.sub("", rest):
            raise ValueError(f"{font!r}: a further file of a typeface must be told as '+FILE sha256:' and 64 digits.")
        told = [(*first, checksum), *_FURTHER.findall(rest)]
        files = tuple(_verified(name, number, checksum) for name, number, checksum in told)
        faces.append(Face(files, held_out=use == "test"))
    if len({face.held_out for face in faces}) < 2:
        raise DataError("glyphs needs typefaces to train on and typefaces to test on, but all have the same use.")
    return tuple(faces)


def _verified(name: str, number: str | None, checksum: str) -> FontFile:
    """A file as an earlier call told it, if it still is what it was."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(f"there is no font file {path}.")
    actual = _checksum(path)
    if actual != checksum:
        raise DataError(
            f"{path} is not the font file it was: its checksum is sha256:{actual}, and sha256:{checksum} is asked "
            "for. Put the old file back, or name the fonts anew."
        )
    return FontFile(path, int(number or 0), checksum)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _embedded() -> list[_Place]:
    try:
        import matplotlib
    except ImportError:
        raise DataError(
            "the default fonts of glyphs come with matplotlib, which is not installed: pip install matplotlib"
        ) from None
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = [path for path in folder.glob("DejaVu*.ttf") if path.stem.split("-")[0] in _FAMILIES]
    return [((path, 0),) for path in sorted(files, key=lambda path: path.name)]


def _named(fonts: Fonts) -> list[_Place]:
    places: set[_Place] = set()
    for given in fonts:
        path = Path(given).expanduser().resolve()
        if path.is_dir():
            within = [p for p in path.rglob("*") if p.suffix.lower() in _ENDINGS and p.is_file()]
            if not within:
                raise DataError(f"{path} holds no fonts; known are {', '.join(_ENDINGS)}.")
            places.update(((p.resolve(), 0),) for p in within)
        else:
            places.add(_place(os.fspath(given)))
    # Else the same drawing could be trained on in one typeface and tested on in another.
    joined = {file for place in places if len(place) > 1 for file in place}
    kept = (place for place in places if len(place) > 1 or place[0] not in joined)
    in_order = sorted(kept, key=lambda place: [(path.name, str(path), index) for path, index in place])
    # A copy of a file under another name is the same drawing too; the first name stays.
    alike = {tuple((_checksum(path), index) for path, index in place): place for place in reversed(in_order)}
    return [place for place in in_order if place in alike.values()]


def _place(text: str) -> _Place:
    """The files of `A.ttf+B.ttc#1`. A plus may also be part of a name: what is a file as it stands is taken so."""
    files: list[tuple[Path, int]] = []
    pending = ""
    for piece in text.split("+"):
        pending = f"{pending}+{piece}" if pending else piece
        name, _, number = pending.partition("#")
        path = Path(name).expanduser().resolve()
        if not path.is_file():
            continue
        if number and not number.isdigit():
            raise ValueError(f"{text!r}: after '#' comes the number of a face in the file, such as {name}#1.")
        files.append((path, int(number or 0)))
        pending = ""
    if pending:
        missing = Path(pending.partition("#")[0]).expanduser()
        if missing.is_dir():
            raise ValueError(f"{text!r}: '+' joins the files of one typeface, but {missing} is a folder. Name files.")
        raise DataError(f"there is no font file or folder {missing}.")
    return tuple(files)


@lru_cache(maxsize=2)  # an experiment asks for the same fonts again and again, and drawing 300,000 glyphs takes minutes
def _drawn(faces: tuple[Face, ...], characters: str | None, size: int) -> tuple[tuple[str, ...], NDArray[np.uint8]]:
    """The class names, and the images of shape (faces, classes, size, size)."""
    wanted = None if characters is None else _ranges(characters)
    covered = [[_code_points(file) for file in face.files] for face in faces]
    shared = set.intersection(*(set().union(*files) for files in covered))
    codes = sorted(code for code in shared if _is_visible(code) and (wanted is None or code in wanted))
    if len(codes) < 2:
        raise DataError(
            f"the {len(faces)} typefaces have {len(codes)} characters in common"
            f"{f' within {characters}' if characters else ''}; at least 2 are needed. Leave out faces that lack them."
        )
    images = np.zeros((len(faces), len(codes), size, size), np.uint8)
    shown = np.ones(len(codes), bool)
    for k, face in enumerate(faces):
        shown &= _draw(face, covered[k], codes, images[k])
    kept = np.flatnonzero(shown)
    groups = _look_alikes(images[:, kept].reshape(len(faces), len(kept), -1))
    if len(groups) < 2:
        raise DataError("after leaving out empty and missing glyphs, fewer than 2 different characters are left.")
    names = tuple("".join(chr(codes[kept[j]]) for j in group) for group in groups)
    return names, np.ascontiguousarray(images[:, [kept[group[0]] for group in groups]])


def _look_alikes(images: NDArray[np.uint8]) -> list[list[int]]:
    """Characters in groups that look the same in most faces, each group in order, and the groups by their first."""
    faces, count = images.shape[:2]
    together: Counter[tuple[int, int]] = Counter()
    for face in images:
        same: dict[bytes, list[int]] = {}
        for j, image in enumerate(face):
            same.setdefault(image.tobytes(), []).append(j)
        for group in same.values():
            together.update(combinations(group, 2))
    first = list(range(count))
    for (glyph, other), times in sorted(together.items()):
        if 2 * times > faces:
            low, high = sorted((first[glyph], first[other]))
            first = [low if f == high else f for f in first] if low != high else first
    groups: dict[int, list[int]] = {}
    for j, leader in enumerate(first):
        groups.setdefault(leader, []).append(j)
    return list(groups.values())


def _code_points(file: FontFile) -> set[int]:
    """The code points that the file has a glyph for."""
    try:
        from fontTools.ttLib import TTFont
    except ImportError:
        raise DataError("reading fonts needs fontTools, which comes with matplotlib: pip install fonttools") from None
    try:
        number = file.index if file.path.suffix.lower() in (".ttc", ".otc") else -1
        with TTFont(file.path, fontNumber=number, lazy=True) as font:
            return set(font.getBestCmap() or ())
    except Exception as error:  # fontTools raises what it likes on a broken file
        raise DataError(f"{file.path} cannot be read as a font: {error}. Replace or leave it out.") from None


def _draw(
    face: Face, covered: Sequence[set[int]], codes: Sequence[int], images: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Fill `images`, one per code point, each from the first file of the face that shows it.

    False where none does: where there is nothing to see, or the box of a missing glyph. `covered` has the code points
    of each file.
    """
    shown = np.zeros(len(codes), bool)
    for file, within in zip(face.files, covered, strict=True):
        draw = _pen(file, images.shape[-1])
        missing = draw(chr(_NOTHING))
        for j, code in enumerate(codes):
            if not shown[j] and code in within:
                images[j] = draw(chr(code))
                shown[j] = images[j].any() and not np.array_equal(images[j], missing)
    return shown


def _pen(file: FontFile, size: int) -> Callable[[str], NDArray[np.uint8]]:
    """What draws a character of a font file by Pillow."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise DataError("drawing characters needs Pillow, which is not installed: pip install pillow") from None
    try:
        # The basic engine places one glyph at a time and is part of every Pillow; the other one depends on the system.
        font = ImageFont.truetype(str(file.path), 3 * size // 4, index=file.index, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise DataError(f"{file.path} cannot be read as a font: {error}. Replace or leave it out.") from None

    def draw(character: str) -> NDArray[np.uint8]:
        canvas = Image.new("L", (size, size))
        # Centered on its advance and standing on its baseline, so that a comma and an apostrophe stay apart.
        try:
            ImageDraw.Draw(canvas).text((size / 2, 3 * size // 4), character, fill=255, font=font, anchor="ms")
        except Exception as error:  # of a damaged outline FreeType and Pillow say what they like
            raise DataError(f"{file.path} cannot draw {character!r}: {error}. Replace or leave it out.") from None
        return np.asarray(canvas)

    return draw


def _is_visible(code: int) -> bool:
    return unicodedata.category(chr(code))[0] not in "CZ"  # controls, private, surrogates; separators


def _ranges(text: str) -> set[int]:
    def ends(part: str) -> Iterable[int]:
        low, dash, high = part.strip().partition("-")
        return range(int(low, 16), min(int(high if dash else low, 16), sys.maxunicode) + 1)

    try:
        return {code for part in text.split(",") for code in ends(part)}
    except ValueError:
        raise ValueError(
            f'characters must be ranges of hexadecimal code points such as "4E00-9FA5", got {text!r}.'
        ) from None
