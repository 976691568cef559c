"""The ledger's rows, its verdict rules on hand-made rows, refusals, and stored against fresh."""

import csv
import sys
import types

import numpy as np
import pandas as pd
import pytest

from momentdp import ledger

NUMBER = {"kind": "number", "reported": 58.0, "tolerance": 0.05, "settings_tried": 1}


def test_every_reported_number_has_one_row():
    rows = ledger.load()
    assert list(rows.columns) == [
        "id", "where", "kind", "reported", "ours", "tolerance", "verdict", "settings_tried", "note",
    ]  # fmt: skip
    assert len(rows) == rows["id"].nunique() == 152
    assert set(rows["verdict"]) <= set(ledger.VERDICTS)
    assert rows["kind"].value_counts().to_dict() == {
        "number": 95, "label": 34, "count": 17, "rank": 5, "bound": 1,
    }  # fmt: skip


def test_numbers_from_the_paper():
    """A few rows typed from the paper's tables."""
    reported = ledger.load().set_index("id")["reported"]
    assert reported["grid.pairwise.curv_sched_mu0"] == 75.8  # Table 3
    assert reported["logistic.noisecurve.L1"] == 0.10590  # Table 2
    assert reported["cnn.parameters"] == 140714  # G.1
    assert reported["intervention.best.mu0.50"] == "Dense MF"  # Table 1
    assert reported["identity.worst_relative_error"] == 9.7e-16  # B.3


def test_ours_is_a_number_wherever_the_papers_is():
    for row in ledger.load().itertuples():
        if row.kind == "label":
            assert isinstance(row.reported, str)
            assert isinstance(row.ours, str) or np.isnan(row.ours)
        else:
            assert isinstance(row.reported, (int, float))
            assert isinstance(row.ours, (int, float))
            assert row.kind not in ("count", "rank") or isinstance(row.reported, int)


def test_default_tolerance_is_half_the_last_printed_digit():
    rows = ledger.load().set_index("id")
    ours = pd.read_csv(ledger.DATA / "ours.csv").set_index("id")["tolerance"]
    for identity, half_digit in {
        "grid.kendall.lr_aware": 0.0005,  # printed 0.200
        "grid.top1.momentdp": 0.5,  # printed 100
        "identity.worst_relative_error": 0.05e-16,  # printed 9.7e-16
        "cnn.eta0": 0.000005,  # printed 0.00229
        "cnn.parameters": 0.0,
    }.items():
        if np.isnan(ours.get(identity, np.nan)):
            assert rows["tolerance"][identity] == pytest.approx(half_digit), identity


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ours": np.nan}, "not yet"),
        ({"ours": 58.0}, "exact"),
        ({"ours": 58.0 * (1 + 1e-12)}, "exact"),
        ({"ours": 58.05}, "within tolerance"),
        ({"ours": 58.06}, "not reproduced"),
        ({"ours": 58.06, "tolerance": 0.1}, "within tolerance"),
        ({"ours": 61.8, "same_order": True}, "same sign and rank"),
        ({"ours": 58.04, "same_order": True}, "within tolerance"),
        ({"ours": 58.04, "settings_tried": 40}, "matched after fitting"),
        ({"ours": 58.0, "settings_tried": 2}, "matched after fitting"),
        ({"ours": 70.0, "settings_tried": 40}, "not reproduced"),
        ({"ours": 61.8, "settings_tried": 40, "same_order": True}, "matched after fitting"),
        ({"ours": 58.0, "under_specified": "no scale given"}, "under-specified"),
        ({"kind": "count", "reported": 7.0, "ours": 7.0, "tolerance": 0.0}, "exact"),
        ({"kind": "count", "reported": 7.0, "ours": 6.0, "tolerance": 0.0}, "not reproduced"),
        ({"kind": "count", "reported": 7.0, "ours": 6.0, "tolerance": 1.0}, "within tolerance"),
        ({"kind": "rank", "reported": 9.0, "ours": 9.0, "tolerance": 0.0}, "exact"),
        ({"kind": "rank", "reported": 9.0, "ours": 8.0, "tolerance": 0.0}, "not reproduced"),
        ({"kind": "bound", "reported": 1e-10, "ours": 4e-15}, "exact"),
        ({"kind": "bound", "reported": 1e-10, "ours": 2e-10}, "not reproduced"),
        ({"kind": "label", "reported": "Dense", "ours": "Dense"}, "exact"),
        ({"kind": "label", "reported": "Dense", "ours": "BandMF"}, "not reproduced"),
        (
            {"kind": "label", "reported": "Dense", "ours": "Dense", "settings_tried": 3},
            "matched after fitting",
        ),
    ],
)
def test_verdicts_by_hand(change, expected):
    assert ledger.verdict(NUMBER | change) == expected


def test_stored_verdicts_follow_from_the_row():
    for row in ledger.load(details=True).to_dict("records"):
        assert row["verdict"] == ledger.verdict(row)


def test_rows_that_could_not_but_agree_are_counted_beside_those_that_do():
    """Eleven settings of the protocols, nine rows that hold a score against itself, five others."""
    rows, counts = ledger.load(details=True), ledger.counts()
    assert counts.loc["all"].tolist() == [len(rows), 25]
    assert (
        counts["rows"].iloc[:-1].to_dict()
        == rows["verdict"].value_counts().reindex(ledger.VERDICTS, fill_value=0).to_dict()
    )
    reasons = rows[rows["by_construction"] != ""].set_index("id")["by_construction"]
    assert reasons.str.startswith("a setting").sum() == 11
    assert reasons.index.str.contains("momentdp").sum() == 9
    ours = rows.set_index("id")["verdict"][reasons.index]
    assert set(ours) <= {"exact", "under-specified"}  # else the reason is wrong


@pytest.fixture
def folder(tmp_path):
    """A ledger of its own: the paper's rows, nothing of ours."""
    (tmp_path / "reported.csv").write_bytes((ledger.DATA / "reported.csv").read_bytes())
    header = (ledger.DATA / "ours.csv").read_text().splitlines()[0]
    (tmp_path / "ours.csv").write_text(header + "\n")
    return tmp_path


def verdicts(folder):
    return ledger.load(folder).set_index("id")["verdict"]


def test_a_verdict_without_rows_counts_as_none(monkeypatch):
    rows = ledger.load(details=True)
    exact = rows[rows["verdict"] == "exact"]
    monkeypatch.setattr(ledger, "load", lambda **_: exact)
    counts = ledger.counts()["rows"]
    assert counts.drop(["exact", "all"]).eq(0).all() and counts["all"] == len(exact)


def test_an_ordering_counts_as_a_whole(folder):
    """E.2, cosine: 0.58, 0.51, 0.44 in the paper."""
    ids = [f"winners.cosine.{name}" for name in ("dense", "bandmf", "toeplitz")]
    assert set(verdicts(folder)[ids]) == {"not yet"}
    ledger.record(dict(zip(ids, [0.609, 0.484, 0.447], strict=True)), folder)
    assert set(verdicts(folder)[ids]) == {"same sign and rank"}
    ledger.record({ids[2]: 0.442}, folder)
    assert list(verdicts(folder)[ids]) == ["same sign and rank"] * 2 + ["within tolerance"]
    ledger.record({ids[1]: 0.41}, folder)
    assert list(verdicts(folder)[ids]) == ["not reproduced"] * 2 + ["within tolerance"]


def test_ordering_ignores_pairs_tied_in_the_paper_and_needs_every_member(folder):
    """Top-1: static and LR-aware are both 33.3, curvature 36.7, MOMENT-DP 100."""
    ids = [f"grid.top1.{name}" for name in ("static", "lr_aware", "curv_sched_mu0")]
    ledger.record(dict(zip(ids, [26.7, 33.0, 46.7], strict=True)), folder)
    assert set(verdicts(folder)[ids]) == {"not reproduced"}
    ledger.record({"grid.top1.momentdp": 100.0}, folder)
    assert set(verdicts(folder)[ids]) == {"same sign and rank"}
    assert verdicts(folder)["grid.top1.momentdp"] == "exact"


def test_a_changed_sign_breaks_an_ordering(folder):
    """Kendall's tau: 0.143, 0.200, 0.501, 1.000 in the paper."""
    ids = [f"grid.kendall.{name}" for name in ("static", "lr_aware", "curv_sched_mu0", "momentdp")]
    ledger.record(dict(zip(ids, [0.1, 0.3, 0.4, 1.0], strict=True)), folder)
    assert verdicts(folder)[ids[0]] == "same sign and rank"
    ledger.record({ids[0]: -0.1}, folder)
    assert verdicts(folder)[ids[0]] == "not reproduced"


def test_every_ordering_has_rows():
    ids = ledger.load()["id"]
    for ordering in ledger.ORDERINGS:
        assert ids.str.startswith(f"{ordering}.").sum() >= 2, ordering


def test_record_keeps_what_was_declared_and_sorts(folder):
    ledger.record({"grid.regret.static": 12.41234567}, folder, tolerance=0.5, note='a, "b"')
    ledger.record({"cnn.parameters": 140714, "grid.regret.static": 12.3}, folder)
    with (folder / "ours.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["cnn.parameters", "grid.regret.static"]
    assert rows[1]["ours"] == "12.3"
    row = ledger.load(folder).set_index("id").loc["grid.regret.static"]
    assert (row["tolerance"], row["note"], row["verdict"]) == (0.5, 'a, "b"', "within tolerance")
    assert row["settings_tried"] == 1
    assert sorted(path.name for path in folder.iterdir()) == ["ours.csv", "reported.csv"]


def test_under_specified_needs_a_reason(folder):
    ledger.record({"intervention.axis_low": 0.05}, folder, under_specified="axis without a scale")
    assert verdicts(folder)["intervention.axis_low"] == "under-specified"


@pytest.mark.parametrize(
    ("values", "fields", "message"),
    [
        ({"no.such.id": 1.0}, {}, "ours.csv id: got no.such.id; use ids of reported.csv"),
        ({"cnn.parameters": "many"}, {}, "cnn.parameters ours: got 'many'; give a finite"),
        ({"cnn.parameters": np.nan}, {}, "cnn.parameters ours: got 'nan'; give a finite"),
        ({"cnn.eta0": 0.002}, {"tolerance": -1.0}, "cnn.eta0 tolerance: got '-1.0'; .* not neg"),
        ({"cnn.eta0": 0.002}, {"settings_tried": 1.5}, "cnn.eta0 settings_tried: got '1.5'; give"),
        ({"cnn.eta0": 0.002}, {"verdict": "exact"}, "fields: got verdict; use tolerance"),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_written(folder, values, fields, message):
    before = (folder / "ours.csv").read_bytes()
    with pytest.raises(ValueError, match=message):
        ledger.record({"cnn.shards": 100} | values, folder, **fields)
    assert (folder / "ours.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        (
            "ours.csv",
            "cnn.shards,100,,,,,\ncnn.shards,99,,,,,",
            "ours.csv id: got cnn.shards; give",
        ),
        ("reported.csv", "cnn.shards,G.1,again,count,100,,,", "reported.csv id: got cnn.shards;"),
        ("reported.csv", "x,G.1,new,guess,1,,,", "x kind: got 'guess'; use one of count"),
        ("reported.csv", "x,G.1,new,count,about two,,,", "x reported: got 'about two'; give a"),
    ],
)
def test_bad_files_are_refused(folder, file, line, message):
    with (folder / file).open("a") as rows:
        rows.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        ledger.load(folder)


def test_a_stored_verdict_is_refused(folder):
    (folder / "ours.csv").write_text("id,ours,verdict\ncnn.shards,100,exact\n")
    with pytest.raises(ValueError, match="ours.csv columns: got .*verdict.*; use"):
        ledger.load(folder)


def test_verify_catches_one_changed_digit(folder):
    ledger.verify()
    text = (folder / "reported.csv").read_text()
    (folder / "reported.csv").write_text(text.replace("0.10590", "0.10950"))
    with pytest.raises(ValueError, match="reported.csv SHA-256: got .*; restore"):
        ledger.verify(folder)


def test_stale_tells_a_changed_value_from_rounding(folder):
    ledger.record({"cnn.eta0": 0.0022912345678, "cnn.verdict": "none"}, folder)
    assert ledger.stale({"cnn.eta0": 0.0022912345678, "cnn.verdict": "none"}, folder) == []
    assert ledger.stale({"cnn.eta0": 0.00230, "cnn.verdict": "some"}, folder) == [
        "cnn.eta0", "cnn.verdict",
    ]  # fmt: skip
    assert ledger.stale({"cnn.shards": 100.0}, folder) == ["cnn.shards"]


def test_two_studies_may_not_own_one_id(monkeypatch):
    for name in ("one", "other"):
        study = types.SimpleNamespace(ledger_rows=lambda: {"cnn.shards": 100})
        monkeypatch.setitem(sys.modules, f"studies_{name}", study)
    assert ledger.fresh(("studies_one",)) == {"cnn.shards": 100}
    with pytest.raises(ValueError, match="studies_other: got cnn.shards; let one study own"):
        ledger.fresh(("studies_one", "studies_other"))


@pytest.mark.parametrize("study", ledger.STUDIES)
def test_recorded_values_are_what_the_studies_compute(study):
    assert ledger.stale(ledger.fresh((study,))) == []
