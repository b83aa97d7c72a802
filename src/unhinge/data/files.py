"""Named files out of a folder or a tar archive, read whole and never unpacked onto the disk."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

from unhinge.data.errors import DataError

__all__ = ["LARGEST", "read_file", "read_files"]

# The largest file of any set read here is SVHN's train_32x32.mat with 182 MB, unpacked 225 MB; the largest archive,
# CIFAR-10's, unpacks to 186 MB. What claims more than twice that is damaged, or made to fill the memory.
LARGEST = 1 << 29


def read_file(path: Path) -> bytes:
    """The content of `path`, with an error of ours where the system refuses."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise DataError(f"{path} has {size:,} bytes, more than any file of the sets read here.")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_files(place: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Those of `names` that `place` holds, a folder or a tar archive, gzip or plain; empty if there is no `place`.

    In an archive a name matches whatever folder it is in.
    """
    if place.is_dir():
        return {name: read_file(place / name) for name in names if (place / name).is_file()}
    if not place.is_file():
        return {}
    contents: dict[str, bytes] = {}
    try:
        # A stream: one pass, which for tar.gz is also the only one there is.
        with _BoundedReader(place) as stream, tarfile.open(fileobj=cast(BinaryIO, stream), mode="r|") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                # A sparse member is regular too, and may be of any size without a byte in the archive.
                if name not in names or not member.isreg() or member.issparse() or name in contents:
                    continue
                content = cast(BinaryIO, archive.extractfile(member)).read()
                if len(content) != member.size:
                    raise DataError(f"member {member.name} has {len(content)} of {member.size} bytes")
                contents[name] = content
                if len(contents) == len(names):
                    break
    except Exception as error:  # tarfile, gzip and zlib each have their own
        raise DataError(f"{place} is truncated or damaged: {error}.") from None
    return contents


class _BoundedReader(io.RawIOBase):
    """The bytes of a file, unpacked if it is gzip, and no more than any real archive has: a bomb ends here."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        self._stream = cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")  # noqa: SIM115  # closed below
        self._left = LARGEST

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(content)
        if self._left < 0:
            raise DataError(f"it unpacks to more than {LARGEST:,} bytes")
        return content

    def close(self) -> None:
        self._stream.close()
        super().close()
