"""The paper's solvers against certified optima, its baselines against published values, the records
against closed forms and recomputation."""

import numpy as np
import pytest

import momentdp as mdp
from momentdp.damage import error_variances, workload_matrix
from momentdp.studies import solver_runs, solvers

# Problem P1 by a semidefinite solver: d = 16, kappa 100, eta lambda_max = .1, no momentum.
OPTIMA = {(8, 2): 0.1121781, (8, 4): 0.0631082, (32, 2): 0.2212549, (32, 4): 0.1212749}


def test_second_solver_reaches_the_optimum_where_it_stays_feasible():
    X, value = solver_runs.paper_lbfgs(solver_runs.p1_factor(8, 100.0, 0.1), 2)
    assert 0.01 * value == pytest.approx(OPTIMA[8, 2], rel=1e-6)
    assert np.linalg.eigvalsh(X)[0] > 1e-3
    np.testing.assert_array_equal(np.diag(X), 1)
    assert np.abs(np.triu(X, 2)).max() == 0


def test_shifting_an_indefinite_matrix_goes_below_the_bound():
    X, value = solver_runs.paper_lbfgs(solver_runs.p1_factor(8, 100.0, 0.1), 4, 0, "shifted")
    assert np.linalg.eigvalsh(X)[0] < 0
    assert 0.01 * value < 0.5 * OPTIMA[8, 4]


def test_crosscheck_records():
    table = solvers.load("crosscheck")
    for case, optimum in OPTIMA.items():
        assert table["optimum"][case] == pytest.approx(optimum, rel=1e-5)
        assert table["with floor"][case] == pytest.approx(optimum, rel=1e-5)
    assert (table["bound"] <= table["optimum"]).all()
    assert (1 - table["bound"] / table["optimum"]).max() < 3e-4
    for bound, ends in zip(table["bound"], table["ends"], strict=True):
        for name, found in ends.items():
            values, smallest = np.array(found).T
            feasible = smallest >= 1e-3
            assert (values[feasible] >= bound * (1 - 1e-9)).all(), name


def test_records_at_the_horizon_of_the_paper():
    infimum = 6.92413  # T = 128, b = 16, kappa 10, eta lambda_max .4, found by two other codes
    path = solvers.load("eps")
    assert path["objective"].iloc[0] == pytest.approx(infimum, rel=1e-4)
    assert (np.diff(path["objective"]) > 0).all()
    assert (path["objective"] > infimum * (1 - 1e-6)).all()
    starts = solvers.load("adam")
    assert len(starts) - 1 >= 20
    assert (starts["best"] > infimum).all()
    assert starts["best"].iloc[-1] == pytest.approx(starts["best"].iloc[0], rel=1e-6)
    assert abs(starts["last"].iloc[-1] / starts["last"].iloc[0] - 1) > 0.01


def test_unregularised_records():
    """The objective settles while X goes singular; the first record, made again."""
    infimum = 6.92413  # as above
    stopped = solvers.load("gradients")
    assert stopped["gradients"].is_monotonic_increasing
    assert stopped["gradients"].iloc[-1] < stopped.index[-1]  # it ended by itself
    assert (np.diff(stopped["objective"]) < 0).all()
    assert stopped["objective"].iloc[-1] == pytest.approx(infimum, rel=1e-5)
    assert stopped["objective"].iloc[2] < 1.001 * infimum
    for spectrum, noise in zip(stopped["spectrum"], stopped["noise"], strict=True):
        assert sum(spectrum) == pytest.approx(128)  # trace of X, unit diagonal
        # tr X^-1 from its eigenvalues and from the variances of the steps
        assert np.sum(1 / np.array(spectrum)) == pytest.approx(np.sum(np.square(noise)), rel=1e-4)
    again = solver_runs.unregularised(25)
    assert again["noise"] == pytest.approx(stopped["noise"].iloc[0], rel=1e-3)


def test_last_only_in_closed_form():
    steps, f = 24, 0.05
    design = mdp.solve_p1(factor=np.ones((steps, 1)), bands=steps, floor=f)
    # X = (1 - f) 1 1' + f I, inverted by Sherman and Morrison.
    assert design.objective == pytest.approx(steps / (f + (1 - f) * steps), rel=1e-6)
    t = np.arange(1, steps + 1)
    errors = (t - (1 - f) * t**2 / (f + (1 - f) * steps)) / f
    home = mdp.Momentum(0.0), np.zeros(1), np.ones(steps)
    assert mdp.scores.mean_se(design.mechanism, *home) == pytest.approx(errors.mean(), rel=1e-3)


# Kalinin & Andersson, T = 128, chi_t = .1^(t / 127): root errors, max and mean.
LR_AWARE = {
    "lr_aware_sqrt": (1.954142287, 1.488827044),
    "lr_aware_toeplitz": (1.738401172, 1.527138540),
}


def test_lr_aware_readings_against_published_values():
    chi, still = mdp.schedules.exponential_decay(128, 1.0, 0.1), mdp.Momentum(0.0)
    pool = mdp.catalogue(128, pool=list(LR_AWARE), learning_rates=chi)
    for name, (largest, mean) in LR_AWARE.items():
        variances = error_variances(pool[name], still.system(chi), np.zeros(1))[:, 0]
        assert np.sqrt(variances.max()) == pytest.approx(largest, rel=1e-8)
        assert np.sqrt(variances.mean()) == pytest.approx(mean, rel=1e-8)
    A = workload_matrix(still, chi)
    optimum = mdp.solve_p1(A.T @ A / 128)
    assert np.sqrt(optimum.objective) == pytest.approx(1.405198, rel=1e-6)
    assert solvers.constant_limit() < 1e-14


def test_each_score_is_perfect_for_its_own_outcome_and_only_there():
    accuracy = solvers.discrimination()
    assert accuracy.loc["final x 1", "final"] == 1
    assert accuracy.loc["mean x 1", "mean"] == 1
    crossed = accuracy.loc["mean x 1", "final"]
    assert accuracy.loc["final x 1", "mean"] == pytest.approx(crossed)  # symmetric without ties
    assert 0.5 < crossed < 0.9


def test_synthesis_records():
    cells = solvers.load("synthesis")
    for truth in ("home", "curvature / 2", "curvature x 2", "less momentum", "more momentum"):
        for found in cells[truth]:
            assert min(found.values()) >= found["floor"] * (1 - 1e-9)
    case = (0.9, 0.4, "cosine", 10.0)
    found = cells["curvature x 2"].loc[[case]].iloc[0]
    spectrum = mdp.spectra.log_spaced(16, 10.0).scaled(2.0)
    rates = mdp.schedules.cosine(128, 0.4)
    iid = mdp.catalogue(128, pool=["iid"])["iid"]
    assert found["iid"] == pytest.approx(mdp.damage(iid, mdp.Momentum(0.9), spectrum, rates))
    robust = {"curvature": (0.5, 1.0, 2.0)}
    design = mdp.synthesize(
        mdp.Momentum(0.9),
        mdp.spectra.log_spaced(16, 10.0),
        rates,
        structure=cells["streaming"].loc[[case]].iloc[0],
        robust_to=robust,
    )
    again = mdp.damage(design.mechanism, mdp.Momentum(0.9), spectrum, rates)
    assert found["synthesised: robust"] == pytest.approx(again, rel=1e-3)


def test_runs_resume_and_refuse_damage(tmp_path, monkeypatch):
    calls = []

    def run(steps):
        calls.append(steps)
        return {"value": steps / 2}

    monkeypatch.setattr(solvers, "STUDIES", {"tiny": (run, [(3,), (4,)])})
    solvers.main(tmp_path)
    (tmp_path / "tiny-4.json").unlink()
    solvers.main(tmp_path)
    assert calls == [3, 4, 4]
    assert solvers.load("tiny", tmp_path)["value"].to_dict() == {3: 1.5, 4: 2.0}
    path = tmp_path / "tiny-3.json"
    path.write_text(path.read_text().replace("1.5", "1.4"))
    with pytest.raises(ValueError, match="damaged"):
        solvers.main(tmp_path)
