"""Records and their manifests; what a whole study does with them is tested beside each study."""

import errno
import os
import shutil

import pytest

from momentdp import cli
from momentdp.studies import records


@pytest.mark.parametrize("name", cli.RECORDS)
def test_manifest_names_every_committed_file(name):
    folder = records.COMMITTED / name
    files = {path for path in folder.rglob("*") if path.is_file() and path.name != records.MANIFEST}
    named = {folder / name for name in records.read_manifest(folder)["sha256"]}
    assert named == files


def test_manifest_notices_a_changed_and_a_missing_file(tmp_path):
    """SHA-256 of "abc": the first example of FIPS 180-2."""
    path = tmp_path / "in" / "a.json"
    path.parent.mkdir()
    path.write_text("abc")
    records.write_manifest(tmp_path, [path], numpy="2")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert records.read_manifest(tmp_path) == {"numpy": "2", "sha256": {"in/a.json": digest}}
    path.write_text("abd")
    with pytest.raises(ValueError, match=r"in/a.json: got SHA-256 .*; restore ba7816bf8f01"):
        records.read_manifest(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.json"):
        records.read_manifest(tmp_path)


def test_one_digit_of_a_committed_record_is_noticed(tmp_path):
    folder = shutil.copytree(records.COMMITTED / "cnn", tmp_path / "cnn")
    path = folder / "calibration.0.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1', 1))
    with pytest.raises(ValueError, match=r"calibration\.0\.json: got SHA-256"):
        records.read_manifest(folder)


def test_full_disk_leaves_no_record(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        records.write_record(tmp_path / "a.b.0.json", {"seed": 0}, {"x": 1})
    assert not list(tmp_path.iterdir())
