"""Named files out of a folder or a tar archive, read whole and never unpacked onto the disk."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

from unhinge.data.errors import DataError

__all__ = ["read_file", "read_files"]

# The largest file of any set read here is SVHN's extra_32x32.mat with 1.3 GB; a member that claims more is damaged.
_LARGEST = 1 << 31


def read_file(path: Path) -> bytes:
    """The content of `path`, with an error of ours where the system refuses."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_files(place: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Those of `names` that `place` holds, a folder or a tar archive, compressed or not; empty if there is no `place`.

    In an archive a name matches whatever folder it is in.
    """
    if place.is_dir():
        return {name: read_file(place / name) for name in names if (place / name).is_file()}
    if not place.is_file():
        return {}
    found: dict[str, bytes] = {}
    try:
        # A stream: one pass, which for tar.gz is also the only one there is.
        with tarfile.open(place, mode="r|*") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name not in names or not member.isreg() or name in found:
                    continue
                if member.size > _LARGEST:
                    raise DataError(f"member {member.name} claims {member.size} bytes")
                stream = archive.extractfile(member)
                content = stream.read() if stream is not None else b""
                if len(content) != member.size:
                    raise DataError(f"member {member.name} has {len(content)} of {member.size} bytes")
                found[name] = content
                if len(found) == len(names):
                    break
    except Exception as error:  # tarfile, gzip, zlib, bz2 and lzma each have their own
        raise DataError(f"{place} is truncated or damaged: {error}.") from None
    return found
