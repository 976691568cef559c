"""Images for the CNN study: CIFAR-10 from the user's copy, or scikit-learn's digits, enlarged."""

import hashlib
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
OFFICIAL_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
OFFICIAL_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
LARGEST_MEMBER = 64 * 2**20  # a batch of the official archive has 31 MB


@dataclass(frozen=True)
class ImageSet:
    """Colour images of 32 x 32, where they came from, and the SHA-256 of that source."""

    pixels: UInt8[np.ndarray, "n 32 32 3"]
    labels: Int[np.ndarray, " n"]
    source: str
    sha256: str


def digits_images() -> ImageSet:
    """The 1,797 real digits that scikit-learn ships, each 8 x 8 pixel a 4 x 4 block of grey."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    grey = np.kron((15 * digits.images).astype(np.uint8), np.ones((1, 4, 4), np.uint8))
    pixels = np.repeat(grey[..., None], 3, axis=-1)
    digest = hashlib.sha256(pixels.tobytes() + digits.target.tobytes()).hexdigest()
    return ImageSet(pixels, digits.target, "scikit-learn digits", digest)


def fetch_cifar10(folder: str | Path, url: str = OFFICIAL_URL) -> Path:
    """Download the official binary archive into `folder` (once); its checksum is verified.

    Needs `pooch`, part of the extra `study`.
    """
    import pooch

    name = "cifar-10-binary.tar.gz"
    return Path(pooch.retrieve(url, f"md5:{OFFICIAL_MD5}", name, folder, progressbar=True))


def load_cifar10(path: str | Path, part: str = "train") -> ImageSet:
    """CIFAR-10 from a local copy; nothing is extracted to disk and nothing is unpickled.

    `path` is the official `cifar-10-binary.tar.gz` (its checksum is verified before it is opened),
    or a folder or tar archive of images named `train/<class>/<name>.jpg`. `part` is "train" or
    "test". `ValueError` for an altered or truncated archive, an image that is not 32 x 32, or a
    missing class. Of an archive the SHA-256 is the file's, of a folder that of names and contents.
    """
    path = Path(path)
    if part not in ("train", "test"):
        raise ValueError(f'part: got {part!r}; use "train" or "test"')
    if path.is_dir():
        return _from_named_images(_folder_members(path, part), path, part, None)
    if not path.is_file():
        raise ValueError(f"path: got {str(path)!r}, which does not exist; give a copy of CIFAR-10")
    official = path.name.endswith((".tar.gz", ".tgz"))
    if official and (md5 := _file_digest(path, "md5")) != OFFICIAL_MD5:
        raise ValueError(
            f"path: {path.name} has MD5 {md5}, the official binary archive {OFFICIAL_MD5}; "
            "it is truncated, altered or another version: download it again"
        )
    digest = _file_digest(path, "sha256")
    try:
        if official:
            return _from_binary(path, part, digest)
        return _from_named_images(_tar_members(path), path, part, digest)
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise ValueError(
            f"path: {path.name} cannot be read as a tar archive ({error}); it is truncated or "
            "altered: copy it again"
        ) from error


def split_examples(
    count: int,
    *,
    data_seed: int,
    train: int = 40_000,
    calibration: int = 2_000,
    validation: int = 3_000,
    test: int = 5_000,
) -> dict[str, Int[np.ndarray, " part"]]:
    """Disjoint random index sets (G.1's sizes by default), decided by `data_seed` alone.

    `ValueError` when `count` examples do not suffice.
    """
    sizes = {"train": train, "calibration": calibration, "validation": validation, "test": test}
    if sum(sizes.values()) > count:
        raise ValueError(f"count: got {count} examples; the splits {sizes} need more: shrink them")
    order = np.random.default_rng(data_seed).permutation(count)
    ends = np.cumsum(list(sizes.values()))
    return dict(zip(sizes, np.split(order[: ends[-1]], ends[:-1]), strict=True))


def shard_examples(
    examples: Int[np.ndarray, " n"], *, steps: int, batch_size: int, order_seed: int
) -> Int[np.ndarray, "steps batch"]:
    """`steps` disjoint shards: each example is used once at most (single participation)."""
    if steps * batch_size > len(examples):
        raise ValueError(
            f"examples: got {len(examples)}; {steps} disjoint shards of {batch_size} need "
            f"{steps * batch_size}: use fewer steps or a smaller batch_size"
        )
    order = np.random.default_rng(order_seed).permutation(examples)
    return order[: steps * batch_size].reshape(steps, batch_size)


def _file_digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _folder_members(folder: Path, part: str) -> Iterator[tuple[str, bytes]]:
    for file in sorted((folder / part).rglob("*.*")):
        yield file.relative_to(folder).as_posix(), file.read_bytes()


def _tar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Regular files of an archive, read in order into memory: names never become paths."""
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if not member.isfile():
                continue
            if member.size > LARGEST_MEMBER:
                raise ValueError(f"path: member {member.name} has {member.size} bytes; too large")
            yield member.name, archive.extractfile(member).read()


def _from_binary(path: Path, part: str, digest: str) -> ImageSet:
    pattern = r"data_batch_[1-5]\.bin" if part == "train" else r"test_batch\.bin"
    batches = {n: raw for n, raw in _tar_members(path) if re.search(rf"/{pattern}$", n)}
    # A record is one label byte and 3072 pixel bytes: the red plane, then green, then blue.
    records = np.frombuffer(b"".join(batches[n] for n in sorted(batches)), np.uint8)
    records = records.reshape(-1, 3073)
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return _checked(pixels, records[:, 0].astype(np.int64), f"{path.name} ({part})", digest)


def _from_named_images(
    members: Iterator[tuple[str, bytes]], path: Path, part: str, digest: str | None
) -> ImageSet:
    pattern = re.compile(rf"(?:^|/){part}/([a-z]+)/[^/]+\.(?:jpe?g|png)$", re.IGNORECASE)
    decoded, contents = {}, hashlib.sha256()
    for name, raw in members:
        match = pattern.search(name)
        if not match:
            continue
        if match[1] not in CLASSES:
            raise ValueError(f"{name}: unknown class {match[1]!r}; the classes are {CLASSES}")
        contents.update(name.encode() + b"\0" + raw)
        try:
            image = np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"))
        except OSError as error:
            raise ValueError(f"{name}: not a readable image ({error}); copy it again") from error
        if image.shape != (32, 32, 3):
            size = f"{image.shape[1]} x {image.shape[0]}"
            raise ValueError(f"{name}: got {size} pixels; every image must be 32 x 32")
        decoded[name] = (image, CLASSES.index(match[1]))
    if not decoded:
        raise ValueError(f"path: {path.name} has no image named {part}/<class>/<name>.jpg")
    # Sorted, so that a folder and an archive of it give the same examples in the same order.
    pixels, labels = zip(*(decoded[name] for name in sorted(decoded)), strict=True)
    digest = digest or contents.hexdigest()
    return _checked(np.stack(pixels), np.array(labels), f"{path.name} ({part})", digest)


def _checked(pixels: np.ndarray, labels: np.ndarray, source: str, digest: str) -> ImageSet:
    missing = [name for k, name in enumerate(CLASSES) if k not in labels]
    if missing:
        raise ValueError(f"path: {source} has no image of {missing}; the copy is incomplete")
    return ImageSet(np.ascontiguousarray(pixels), labels, source, digest)
