"""Files made to harm whoever reads them, each small; as a script, their readers under limits.

`python hostile.py NAME ...` writes each into a folder of its own, reads it, and prints one line of JSON: the name, what
came of it, and by how many megabytes the largest memory use grew.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import signal
import struct
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import data_makers as make

CHUNK = 1 << 24
SECONDS = 10  # of processor time for one file
GIGABYTE = 1 << 30


def deflated_zeros(size: int, wbits: int = -15) -> bytes:
    """A stream that inflates to `size` zeros, a thousandth as long; made without compressing them all."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    first = packer.compress(bytes(CHUNK)) + packer.flush(zlib.Z_FULL_FLUSH)
    plain = zlib.compressobj(9, zlib.DEFLATED, -15)
    more = plain.compress(bytes(CHUNK)) + plain.flush(zlib.Z_FULL_FLUSH)
    return first + more * (size // CHUNK - 1) + plain.flush()


def zip_of(entries: dict[str, tuple[bytes, int, int]]) -> bytes:
    """A zip archive by hand: by name the stored bytes, the method and the size they claim to have unpacked."""
    body, directory = bytearray(), bytearray()
    for name, (stored, method, size) in entries.items():
        fields = struct.pack(
            "<HHHHHIII", 20, 0, method, 0, 33, 0 if method else zlib.crc32(stored), len(stored), size
        ) + struct.pack("<HH", len(name), 0)
        directory += b"PK\x01\x02\x14\x00" + fields + bytes(10) + struct.pack("<I", len(body)) + name.encode()
        body += b"PK\x03\x04" + fields + name.encode() + stored
    count = len(entries)
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(body), 0)
    return bytes(body + directory) + b"PK\x05\x06" + end


def npy_header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def npz_bomb() -> bytes:
    """Two gigabytes of zeros in two megabytes, sizes all in agreement."""
    header = npy_header((GIGABYTE // 8, 2))
    stored = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = stored.compress(header) + stored.flush(zlib.Z_FULL_FLUSH)
    labels = npy_header((GIGABYTE // 8,), "<i8") + bytes(64)
    features = start + deflated_zeros(2 * GIGABYTE)
    return zip_of(
        {
            "features.npy": (features, 8, 2 * GIGABYTE + len(header)),
            "labels.npy": (labels, 0, len(labels)),
        }
    )


def npz_packed_with(method: int) -> bytes:
    """Of a method numpy never writes, whose decompressor in zipfile has no bound on what it gives back."""
    import bz2
    import lzma

    packed = bz2.compress(bytes(1 << 25)) if method == zipfile.ZIP_BZIP2 else lzma.compress(bytes(1 << 25), preset=0)
    return zip_of({"features.npy": (packed, method, 1000), "labels.npy": (packed, method, 1000)})


def saved(content: Any, legacy: bool = False) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


def pt_legacy_that_claims(size: int) -> bytes:
    raw = saved({"features": torch.zeros(7, 3), "labels": torch.zeros(7, dtype=torch.int64)}, legacy=True)
    return raw.replace(struct.pack("<q", 21), struct.pack("<q", size)).replace(b"K\x15", b"J" + b"\xff\xff\xff\x7f")


def safetensors_with(header: bytes, size: int | None = None, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header) if size is None else size) + header + body


def nested_lists(levels: int) -> bytes:
    """Labels `[a, a]` of an `a` that is `[b, b]` of a `b` ...: small in memory, endless when walked."""
    inner: list[Any] = [1, 2]
    for _ in range(levels):
        inner = [inner, inner]
    return pickle.dumps({"labels": inner, "data": make.images(20, 3072)}, protocol=2)


def nested_tuples(levels: int) -> bytes:
    """The same as keys, which are hashed while they are unpickled."""
    inner = b"K\x01K\x02\x86q\x00"
    more = b"".join(b"h" + bytes([k, ord("h"), k]) + b"\x86q" + bytes([k + 1]) for k in range(levels))
    return b"\x80\x02}(" + inner + more + b"u."


def tar_of(members: list[tuple[bytes, str, int, bytes]]) -> bytes:
    """A tar by hand: type, name, claimed size, content."""
    out = bytearray()
    for kind, name, size, content in members:
        info = tarfile.TarInfo(name)
        info.type, info.size = kind, size
        out += info.tobuf(tarfile.GNU_FORMAT) + content
    return bytes(out)


def gz_of(start: bytes, zeros: int) -> bytes:
    """A gzip stream of `start` and then `zeros` zeros; its checksum is wrong, which shows only at the very end."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\x02\xff" + head + deflated_zeros(zeros) + bytes(8)


def mat(*elements: bytes) -> bytes:
    return b" " * 124 + b"\x00\x01IM" + b"".join(elements)


def mat_element(code: int, body: bytes) -> bytes:
    return struct.pack("<II", code, len(body)) + body


def mat_bomb(count: int) -> bytes:
    """Some compressed arrays, each of a quarter of a gigabyte of zeros."""
    size = 1 << 28
    packer = zlib.compressobj(9)
    start = packer.compress(struct.pack("<II", 14, size)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = start + deflated_zeros(size) + struct.pack(">I", 1)
    return mat(*[mat_element(15, packed)] * count)


def mat_of_crumbs() -> bytes:
    """An array of millions of empty parts."""
    return mat(mat_element(14, bytes(1 << 25)))


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (3 * width + 1) * height
    packed = deflated_zeros(rows - rows % CHUNK + CHUNK, 15)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n"


# ---- by name: written into a folder, and read ----------------------------------------------------------------------

Case = tuple[Callable[[Path], object], Callable[[Path], object]]


def features(suffix: str, content: Callable[[], bytes]) -> Case:
    def read(folder: Path) -> object:
        from unhinge.prediction import read_features

        return read_features(folder / f"hostile{suffix}")

    return lambda folder: (folder / f"hostile{suffix}").write_bytes(content()), read


def upload(content: Callable[[], bytes]) -> Case:
    def read(folder: Path) -> object:
        from unhinge.web.uploads import read_npz

        return read_npz((folder / "hostile.npz").read_bytes())

    return lambda folder: (folder / "hostile.npz").write_bytes(content()), read


def images(name: str, write: Callable[[Path], object]) -> Case:
    def read(folder: Path) -> object:
        from unhinge.data import load

        where = f"folder:{folder}" if name == "folder" else name
        return load(where, None if name == "folder" else folder, checksum="skip")

    return write, read


def one_file(name: str, content: Callable[[], bytes], others: Callable[[Path], object]) -> Callable[[Path], object]:
    """A whole set, and in it one hostile file."""

    def write(folder: Path) -> None:
        others(folder)
        (folder / name).write_bytes(content())

    return write


def classes_with(entry: Callable[[Path], object]) -> Callable[[Path], object]:
    """A folder of images with one hostile entry in its first class."""

    def write(folder: Path) -> None:
        from PIL import Image

        for name in ("ant", "bee"):
            (folder / name).mkdir(parents=True)
            for number in range(5):
                Image.fromarray(make.images(8, 8, 3, seed=number)).save(folder / name / f"{number}.png")
        entry(folder / "ant")

    return write


def loops(folder: Path) -> None:
    for name in ("again", "and-again"):
        (folder / name).symlink_to(folder)


def checkpoint(content: Callable[[], bytes]) -> Case:
    def read(folder: Path) -> object:
        from unhinge.training.checkpoint import read_tensors

        return read_tensors(folder / "last.safetensors")

    return lambda folder: (folder / "last.safetensors").write_bytes(content()), read


def records(content: bytes) -> Case:
    def read(folder: Path) -> object:
        from unhinge.training.records import read_records

        return read_records(folder)

    return lambda folder: (folder / "log.jsonl").write_bytes(content), read


def recipe(content: bytes) -> Case:
    def read(folder: Path) -> object:
        from unhinge.training import Recipe

        return Recipe.from_json((folder / "recipe.json").read_text(encoding="utf-8"))

    return lambda folder: (folder / "recipe.json").write_bytes(content), read


def _sparse(folder: Path) -> None:
    """GNU's old sparse format: a size of two gigabytes, and nothing stored."""
    info = tarfile.TarInfo("cifar-10-batches-py/test_batch")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[483:495] = b"%011o\0" % (GIGABYTE * 2 - 1)  # the size it has when laid out
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    (folder / "cifar-10-python.tar").write_bytes(bytes(head) + bytes(1024))


def _tar_gz(start: bytes, zeros: int) -> Callable[[Path], object]:
    return lambda folder: (folder / "cifar-10-python.tar.gz").write_bytes(gz_of(start, zeros))


def _names(folder: Path) -> None:
    """Links, devices and paths out of the folder, all of them called as a batch is."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for kind, name in (
            (tarfile.SYMTYPE, "test_batch"),
            (tarfile.LNKTYPE, "a/test_batch"),
            (tarfile.FIFOTYPE, "b/test_batch"),
            (tarfile.CHRTYPE, "c/test_batch"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        info = tarfile.TarInfo("../../../tmp/test_batch")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
    (folder / "cifar-10-python.tar").write_bytes(stream.getvalue())


DEEP = b"[" * 200_000
RAGGED = [torch.ones(2), torch.ones(3)]
TERABYTES = npy_header((1 << 40, 8))
HUGE_BATCH = tar_of([(tarfile.REGTYPE, "test_batch", 2 * GIGABYTE - 512, b"")])
HUGE_RECORD = tar_of([(tarfile.REGTYPE, "padding", 8 * GIGABYTE - 1, b"")])
HUGE_HEADER = tar_of([(tarfile.XHDTYPE, "x", 8 * GIGABYTE - 1, b"")])
LONG_NAME = tar_of([(tarfile.GNUTYPE_LONGNAME, "x", 8 * GIGABYTE - 1, b"")])


def _cifar(content: Callable[[], bytes]) -> Case:
    return images("cifar10", one_file("cifar-10-batches-py/test_batch", content, make.cifar10_python))


def _svhn(content: Callable[[], bytes]) -> Case:
    return images("svhn", one_file("svhn/test_32x32.mat", content, lambda folder: make.svhn(folder / "svhn")))


def _mnist(content: Callable[[], bytes]) -> Case:
    name = "MNIST/raw/t10k-images-idx3-ubyte.gz"
    return images("mnist", one_file(name, content, lambda r: make.idx_set(r / "MNIST" / "raw", packed=True)))


CASES: dict[str, Case] = {
    "npz: a bomb": features(".npz", npz_bomb),
    "npz: bzip2": features(".npz", lambda: npz_packed_with(zipfile.ZIP_BZIP2)),
    "npz: lzma": features(".npz", lambda: npz_packed_with(zipfile.ZIP_LZMA)),
    "npz: a name that leads out": features(".npz", lambda: zip_of({"../features.npy": (b"x", 0, 1)})),
    "pt: a bomb": features(".pt", npz_bomb),
    "pt: no content": features(
        ".pt", lambda: saved({"features": torch.zeros(6, 3, device="meta"), "labels": torch.arange(6) % 2})
    ),
    "pt: nested": features(
        ".pt", lambda: saved({"features": torch.nested.nested_tensor(RAGGED), "labels": torch.arange(2)})
    ),
    "pt: sparse": features(".pt", lambda: saved({"features": torch.eye(4).to_sparse(), "labels": torch.arange(4) % 2})),
    "pt: eight bits": features(
        ".pt", lambda: saved({"features": torch.ones(4, 2).to(torch.float8_e5m2), "labels": torch.arange(4) % 2})
    ),
    "pt: an old file that claims terabytes": features(".pt", lambda: pt_legacy_that_claims(1 << 40)),
    "pt: an endless pickle": features(".pt", lambda: b"\x80\x02" + b"]" * 1_000_000 + b"."),
    "safetensors: a header of exabytes": features(".safetensors", lambda: safetensors_with(b"{}", 1 << 60)),
    "safetensors: a deep header": features(".safetensors", lambda: safetensors_with(b'{"a":' + DEEP)),
    "safetensors: a tensor of exabytes": features(
        ".safetensors",
        lambda: safetensors_with(
            b'{"features":{"dtype":"F64","shape":[1152921504606846976,1],"data_offsets":[0,0]},'
            b'"labels":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}}'
        ),
    ),
    "upload: a bomb": upload(npz_bomb),
    "upload: bzip2": upload(lambda: npz_packed_with(zipfile.ZIP_BZIP2)),
    "upload: lzma": upload(lambda: npz_packed_with(zipfile.ZIP_LZMA)),
    "upload: a header of terabytes": upload(
        lambda: zip_of(
            {f"{key}.npy": (TERABYTES, 0, len(TERABYTES)) for key in ("features", "weight", "labels")}
        )
    ),
    "cifar: labels without end": _cifar(lambda: nested_lists(60)),
    "cifar: a key without end": _cifar(lambda: nested_tuples(48)),
    "cifar: millions of instructions": _cifar(lambda: b"\x80\x02}(" + b"K\x01" * 8_000_000 + b"u."),
    "cifar: a sparse member": images("cifar10", _sparse),
    "cifar: a member of zeros": images("cifar10", _tar_gz(HUGE_BATCH, 2 * GIGABYTE)),
    "cifar: padding before it": images("cifar10", _tar_gz(HUGE_RECORD, 8 * GIGABYTE)),
    "cifar: a header of gigabytes": images("cifar10", _tar_gz(HUGE_HEADER, 4 * GIGABYTE)),
    "cifar: a name of gigabytes": images("cifar10", _tar_gz(LONG_NAME, 4 * GIGABYTE)),
    "cifar: links and devices": images("cifar10", _names),
    "svhn: a bomb": _svhn(lambda: mat_bomb(12)),
    "svhn: crumbs": _svhn(mat_of_crumbs),
    "mnist: a bomb": _mnist(lambda: gz_of(bytes([0, 0, 8, 3]) + struct.pack(">III", 1 << 20, 32, 64), 2 * GIGABYTE)),
    "mnist: zeros after the end": _mnist(lambda: gz_of(make.idx(make.images(20, 28, 28)), 8 * GIGABYTE)),
    "mnist: packed twice": _mnist(lambda: gzip.compress(gz_of(b"", 8 * GIGABYTE))),
    "images: loops": images("folder", classes_with(loops)),
    "images: a pipe": images("folder", classes_with(lambda folder: os.mkfifo(folder / "p.png"))),
    "images: a device": images("folder", classes_with(lambda folder: (folder / "z.png").symlink_to("/dev/zero"))),
    "images: PostScript": images("folder", classes_with(lambda folder: (folder / "z.png").write_bytes(POSTSCRIPT))),
    "images: a bomb": images(
        "folder", classes_with(lambda folder: (folder / "z.png").write_bytes(png(50_000, 40_000)))
    ),
    "images: a first one too large for the rest": images(
        "folder", classes_with(lambda folder: (folder / "-.png").write_bytes(png(9000, 9000)))
    ),
    "checkpoint: a header of exabytes": checkpoint(lambda: safetensors_with(b"{}", 1 << 60)),
    "checkpoint: a deep header": checkpoint(
        lambda: safetensors_with(b'{"__metadata__":{"unhinge":"' + DEEP + b'"}}')
    ),
    "log: deep": records(b'{"epoch": 1}\n' + DEEP + b"\n"),
    "log: no text": records(b'{"epoch": 1}\n\xff\xfe\x00'),
    "log: no records": records(b'{"epoch": 1}\n5\n'),
    "recipe: deep": recipe(DEEP),
    "recipe: a long number": recipe(b'{"epochs": ' + b"9" * 100_000 + b"}"),
}  # fmt: skip


def outcome(read: Callable[[Path], object], folder: Path) -> str:
    try:
        read(folder)
    except Exception as error:
        if isinstance(error, ValueError) and type(error).__name__ != "UnicodeDecodeError":
            return f"refused: {error}"
        return f"FAILED: {type(error).__name__}: {error}"
    return "read"


def main(names: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (16 * GIGABYTE, 16 * GIGABYTE))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process also where Python does not get to run
    with tempfile.TemporaryDirectory() as below:
        for number, name in enumerate(names):
            write, read = CASES[name]
            folder = Path(below) / str(number)
            folder.mkdir()
            write(folder)
            print(json.dumps({"name": name, "outcome": "HUNG OR CRASHED"}), flush=True)
            before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            said = outcome(read, folder)
            signal.setitimer(signal.ITIMER_PROF, 0)
            spent = round(time.process_time() - began, 2)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            print(json.dumps({"name": name, "outcome": said, "megabytes": grown, "seconds": spent}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))
