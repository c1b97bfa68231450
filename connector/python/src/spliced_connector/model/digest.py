"""The digest of a model's weights, which names them in an identity.

Two engines may share segments only if they compute them with the same weights. So the digest covers
all bytes of the weights and is never guessed from a name.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from spliced_connector.errors import ProfileError

_HEADER = b"spliced weights\0"
_READ_BYTES = 1 << 20


def weights_digest(
    source: str | os.PathLike[str],
    cache: str | os.PathLike[str] = "",
    names: Sequence[str] | None = None,
) -> bytes:
    """Returns a digest of all safetensors files of a model directory, or of one such file:

        SHA-256("spliced weights\\0" | for each file by name: name | 0 | SHA-256 of its bytes)

    `cache` is a directory that keeps the digests of files, checked by path, size, time and inode;
    without it all files are read each time. `names` are the files of the directory to include; None
    includes all. Raises `ProfileError` if there are no weights or they cannot be read: there is no
    default digest.
    """
    path = Path(source)
    try:
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if names is not None:
            files = [path / name for name in sorted(names)]
        if not files or files[0].suffix != ".safetensors":
            raise ProfileError(f"weights: no safetensors in {path}")
        sha = hashlib.sha256(_HEADER)
        for file in files:
            sha.update(file.name.encode("utf-8", "surrogateescape") + b"\0")
            sha.update(_file_digest(file, Path(cache) if cache else None))
    except OSError as err:
        raise ProfileError(f"weights: {err}") from err
    return sha.digest()


def _file_digest(file: Path, cache: Path | None) -> bytes:
    with file.open("rb", buffering=0) as f:
        before = os.fstat(f.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise ProfileError(f"weights: {file} is no file")
        known = _Remembered(cache, file, before) if cache else None
        if known and (digest := known.read()):
            return digest
        sha = hashlib.sha256()
        buffer = memoryview(bytearray(_READ_BYTES))
        while n := f.readinto(buffer):
            sha.update(buffer[:n])
        if _state(os.fstat(f.fileno())) != _state(before):
            raise ProfileError(f"weights: {file} changed while it was read")
    if known:
        known.write(sha.digest())
    return sha.digest()


def _state(info: os.stat_result) -> list[int]:
    return [info.st_size, info.st_mtime_ns, info.st_ino, info.st_dev]


class _Remembered:
    """The cached digest of one file. If the cache cannot be read or written, the file is simply
    read again next time."""

    def __init__(self, cache: Path, file: Path, info: os.stat_result) -> None:
        where = str(file.resolve())
        self._key = [where, *_state(info)]
        name = hashlib.sha256(where.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self._at = cache / f"weights-{name}.json"

    def read(self) -> bytes | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._at.read_text())
            digest = bytes.fromhex(kept["sha256"])
            if kept["file"] == self._key and len(digest) == 32:
                return digest
        return None

    def write(self, digest: bytes) -> None:
        aside = self._at.with_suffix(f".{os.getpid()}.part")
        with suppress(OSError):
            self._at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside.write_text(json.dumps({"file": self._key, "sha256": digest.hex()}))
            aside.replace(self._at)
