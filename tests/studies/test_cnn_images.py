import hashlib
import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from momentdp.studies import images as module
from momentdp.studies.images import (
    CLASSES,
    digits_images,
    fetch_cifar10,
    load_cifar10,
    shard_examples,
    split_examples,
)


def _write_folder(folder, size=32, skip=None, per_class=2):
    """Random images as PNG (lossless), so that pixels can be compared; returns them by name."""
    rng, written = np.random.default_rng(0), {}
    for name in CLASSES:
        if name == skip:
            continue
        place = folder / "train" / name
        place.mkdir(parents=True)
        for k in range(per_class):
            pixels = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{k:04d}.png")
            written[f"train/{name}/{k:04d}.png"] = pixels
    return written


def _pack(folder, archive, mode):
    with tarfile.open(archive, mode) as tar:
        for file in sorted(folder.rglob("*.png"), reverse=True):
            tar.add(file, file.relative_to(folder).as_posix())


def _official(path, pixels, labels):
    """An archive in the official binary layout: a label byte, then the three colour planes."""
    records = np.concatenate([labels[:, None], pixels.transpose(0, 3, 1, 2).reshape(-1, 3072)], 1)
    with tarfile.open(path, "w:gz") as tar:
        for k, part in enumerate(np.split(records.astype(np.uint8), 5), 1):
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/data_batch_{k}.bin")
            entry.size = part.size
            tar.addfile(entry, io.BytesIO(part.tobytes()))


def test_folder_and_archive_give_the_written_pixels(tmp_path):
    written = _write_folder(tmp_path / "set")
    _pack(tmp_path / "set", tmp_path / "set.tar.xz", "w:xz")
    folder, archive = load_cifar10(tmp_path / "set"), load_cifar10(tmp_path / "set.tar.xz")
    expected = np.stack([written[name] for name in sorted(written)])
    for loaded in (folder, archive):
        np.testing.assert_array_equal(loaded.pixels, expected)
        np.testing.assert_array_equal(loaded.labels, np.repeat(np.arange(10), 2))
    file_hash = hashlib.sha256((tmp_path / "set.tar.xz").read_bytes()).hexdigest()
    assert archive.sha256 == file_hash != folder.sha256
    Image.fromarray(expected[1]).save(tmp_path / "set/train/airplane/0000.png")
    assert load_cifar10(tmp_path / "set").sha256 != folder.sha256


def test_official_archive_is_read_only_when_its_checksum_agrees(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(20) % 10
    path = tmp_path / "cifar-10-binary.tar.gz"
    _official(path, pixels, labels)
    with pytest.raises(ValueError, match="MD5 .* download it again"):
        load_cifar10(path)
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setattr(module, "OFFICIAL_MD5", md5)
    loaded = load_cifar10(path)
    np.testing.assert_array_equal(loaded.pixels, pixels)
    np.testing.assert_array_equal(loaded.labels, labels)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated"):
        load_cifar10(path)


def test_download_from_loopback_is_verified(tmp_path, monkeypatch):
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    (tmp_path / "served").mkdir()
    content = b"not really images"
    (tmp_path / "served/x.tar.gz").write_bytes(content)
    handler = partial(Quiet, directory=str(tmp_path / "served"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/x.tar.gz"
        with pytest.raises(ValueError, match="hash"):
            fetch_cifar10(tmp_path / "bad", url)
        assert not list((tmp_path / "bad").glob("*"))
        monkeypatch.setattr(module, "OFFICIAL_MD5", hashlib.md5(content).hexdigest())
        assert fetch_cifar10(tmp_path / "good", url).read_bytes() == content
    finally:
        server.shutdown()
        server.server_close()


def test_bad_sets_are_refused(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        load_cifar10(tmp_path / "nowhere")
    _write_folder(tmp_path / "small", size=16, per_class=1)
    with pytest.raises(ValueError, match="0000.png: got 16 x 16 pixels"):
        load_cifar10(tmp_path / "small")
    _write_folder(tmp_path / "part", skip="frog", per_class=1)
    with pytest.raises(ValueError, match="no image of \\['frog'\\]"):
        load_cifar10(tmp_path / "part")
    _write_folder(tmp_path / "set", per_class=1)
    with pytest.raises(ValueError, match="no image named test"):
        load_cifar10(tmp_path / "set", part="test")
    _pack(tmp_path / "set", tmp_path / "set.tar.xz", "w:xz")
    cut = (tmp_path / "set.tar.xz").read_bytes()[:9000]
    (tmp_path / "cut.tar.xz").write_bytes(cut)
    with pytest.raises(ValueError, match="cut.tar.xz cannot be read as a tar archive"):
        load_cifar10(tmp_path / "cut.tar.xz")
    (tmp_path / "set/train/cat/0000.png").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="train/cat/0000.png: not a readable image"):
        load_cifar10(tmp_path / "set")


def test_splits_are_those_of_the_paper_disjoint_and_seeded():
    split = split_examples(50_000, data_seed=3)
    sizes = {name: len(part) for name, part in split.items()}
    assert sizes == {"train": 40_000, "calibration": 2_000, "validation": 3_000, "test": 5_000}
    assert len(np.unique(np.concatenate(list(split.values())))) == 50_000
    again, other = split_examples(50_000, data_seed=3), split_examples(50_000, data_seed=4)
    np.testing.assert_array_equal(split["test"], again["test"])
    assert not np.array_equal(split["test"], other["test"])
    shards = shard_examples(split["train"], steps=100, batch_size=400, order_seed=0)
    assert shards.shape == (100, 400)
    np.testing.assert_array_equal(np.sort(shards, axis=None), np.sort(split["train"]))
    with pytest.raises(ValueError, match="count: got 1797 examples"):
        split_examples(1797, data_seed=0)
    with pytest.raises(ValueError, match="5 disjoint shards of 400 need 2000"):
        shard_examples(np.arange(1999), steps=5, batch_size=400, order_seed=0)


def test_digits_are_the_shipped_ones_enlarged():
    from sklearn.datasets import load_digits

    images, digits = digits_images(), load_digits()
    assert images.pixels.shape == (1797, 32, 32, 3)
    np.testing.assert_array_equal(images.pixels[:, 2::4, 1::4, 2] / 15, digits.images)
    np.testing.assert_array_equal(images.labels, digits.target)
