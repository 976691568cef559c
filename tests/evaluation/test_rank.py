"""The ranking table against calibrations done by hand, and the floor against stored values."""

import numpy as np
import oracles
import pytest

import momentdp as mdp
from momentdp.damage import damage
from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import Momentum
from momentdp.evaluation.rank import damage_floor, rank
from momentdp.mechanisms.mechanism import Mechanism

SIGMA = 1.08116184952023921  # analytic Gaussian at (4, 1e-5), 50-digit root finding
STEPS = 12
EIGENVALUES = np.array([0.05, 0.4, 1.0])
RATES = schedules.cosine(STEPS, 0.3)
OPTIMIZER = Momentum(0.9)
TWO_BANDS = np.eye(STEPS) * 0.8 + np.eye(STEPS, k=-1) * 0.6
STRATEGIES = {
    "iid": np.eye(STEPS),
    "two bands": TWO_BANDS,
    "unstructured": oracles.lower_triangular(STEPS),
}
POOL = {name: Mechanism.from_strategy_matrix(C, name) for name, C in STRATEGIES.items()}


def by_hand(C, noise_stddev):
    """Literal G (K (x) I) G' for white noise of this standard deviation."""
    H, _ = oracles.rotated(EIGENVALUES)
    G = oracles.transfer_matrices(H, RATES, 0.9)
    return oracles.literal_damage(H, G, oracles.temporal_covariance(C), noise_stddev)


def table(**options):
    return rank(POOL, OPTIMIZER, EIGENVALUES, RATES, epsilon=4.0, delta=1e-5, **options)


# options, and the factor that they put on sigma x sensitivity
CALIBRATIONS = [
    ({}, 1.0),
    ({"l2_clip_norm": 3.0, "normalize_by": 50.0}, 3 / 50),
    ({"neighboring_relation": "replace_one"}, 2.0),
    ({"neighboring_relation": "replace_special"}, 1.0),
    ({"neighboring_relation": "replace_one", "l2_clip_norm": 0.5, "normalize_by": 8.0}, 1 / 8),
]


@pytest.mark.parametrize(("options", "factor"), CALIBRATIONS)
def test_calibration_by_hand(options, factor):
    found = table(**options)
    for name, C in STRATEGIES.items():
        sensitivity = np.linalg.norm(C, axis=0).max()
        row = found.loc[name]
        assert row["damage"] == pytest.approx(by_hand(C, SIGMA * sensitivity * factor), rel=1e-10)
        assert row["sensitivity"] == pytest.approx(sensitivity, rel=1e-12)
        assert row["noise_multiplier"] == pytest.approx(SIGMA, rel=1e-10)
        assert row["sensitivity_is_exact"]


def test_participation_by_hand():
    """Two bands, min_sep 4: columns of three participations are orthogonal, so sqrt 3 times."""
    found = table(min_sep=4, max_participations=3)
    for name in ("iid", "two bands"):
        expected = by_hand(STRATEGIES[name], SIGMA * np.sqrt(3))
        assert found.loc[name, "sensitivity"] == pytest.approx(np.sqrt(3), rel=1e-12)
        assert found.loc[name, "damage"] == pytest.approx(expected, rel=1e-10)
    gram = STRATEGIES["unstructured"].T @ STRATEGIES["unstructured"]
    patterns = [[i, j, k] for i in range(12) for j in range(i + 4, 12) for k in range(j + 4, 12)]
    bound = max(np.abs(gram[np.ix_(p, p)]).sum() for p in patterns) ** 0.5
    assert found.loc["unstructured", "sensitivity"] <= bound * (1 + 1e-12)


def test_order_and_ratios():
    found = table()
    assert found.index.name == "mechanism"
    assert [*found.columns] == [
        "rank",
        "damage",
        "relative_to_best",
        "relative_to_floor",
        "sensitivity",
        "sensitivity_is_exact",
        "noise_multiplier",
    ]
    by_damage = sorted(STRATEGIES, key=lambda name: damage_of(name))
    assert [*found.index] == by_damage and [*found["rank"]] == [1, 2, 3]
    np.testing.assert_allclose(
        found["relative_to_best"], found["damage"] / found["damage"].min(), rtol=1e-14
    )
    floor = damage_floor(OPTIMIZER, EIGENVALUES, RATES, noise_multiplier=SIGMA)
    np.testing.assert_allclose(found["relative_to_floor"], found["damage"] / floor, rtol=1e-9)
    assert (found["relative_to_floor"] >= 1).all()


def damage_of(name):
    C = STRATEGIES[name]
    return by_hand(C, np.linalg.norm(C, axis=0).max())


def test_epsilon_changes_the_scale_and_not_the_order():
    strict = rank(POOL, OPTIMIZER, EIGENVALUES, RATES, epsilon=1.0, delta=1e-5)
    assert [*strict.index] == [*table().index]
    ratio = (3.73063163481594 / SIGMA) ** 2
    np.testing.assert_allclose(strict["damage"] / table()["damage"], ratio, rtol=1e-10)


@pytest.mark.parametrize(
    ("kappa", "eta", "momentum", "floor", "iid_over_floor"),
    [(10, 0.05, 0.0, 0.00844909, 22.36), (10, 0.3, 0.9, 2.50634, 4.95)],
)
def test_floor_reference_values(kappa, eta, momentum, floor, iid_over_floor):
    """T = 128, d = 16; any v gives a valid bound: a better search may end 5e-4 higher."""
    arguments = (Momentum(momentum), np.logspace(-np.log10(kappa), 0, 16), np.full(128, eta))
    found = damage_floor(*arguments)
    assert floor * (1 - 2e-6) <= found <= floor * (1 + 5e-4)
    iid = damage(Mechanism.from_toeplitz(steps=128, strategy_coef=[1.0]), *arguments)
    assert iid / found == pytest.approx(iid_over_floor, rel=1.5e-3)
    assert damage_floor(*arguments, noise_multiplier=3.0) == pytest.approx(9 * found, rel=1e-9)


def test_floor_counts_participations():
    """A floor for three participations is at most three times that for one, and not below it."""
    case = OPTIMIZER, EIGENVALUES, RATES
    once, thrice = damage_floor(*case), damage_floor(*case, min_sep=4, max_participations=3)
    assert once < thrice <= 3 * once * (1 + 1e-9)
    assert (table(min_sep=4, max_participations=3)["relative_to_floor"] >= 1).all()
    floor = damage_floor(*case, noise_multiplier=SIGMA, min_sep=4, max_participations=3)
    found = table(min_sep=4, max_participations=3)
    np.testing.assert_allclose(found["relative_to_floor"], found["damage"] / floor, rtol=1e-9)


def test_floor_by_hand_where_all_steps_are_shared():
    """One direction, an example in each of five steps: a floor that is a sum, lambda/2 g_t^2."""
    eta, curvature = 0.2, 0.7
    expected = sum(curvature / 2 * eta**2 * (1 - eta * curvature) ** (2 * t) for t in range(5))
    case = Momentum(0.0), [curvature], np.full(5, eta)
    found = damage_floor(*case, min_sep=1, max_participations=5)
    assert found == pytest.approx(expected, rel=1e-9)


def test_without_curvature_all_are_alike():
    found = rank(POOL, OPTIMIZER, [0.0], RATES, epsilon=1.0, delta=1e-5)
    assert (found["rank"] == 1).all() and (found["damage"] == 0).all()
    assert (found[["relative_to_best", "relative_to_floor"]] == 1).all(axis=None)


def test_floor_is_below_many_strategies():
    """200 random strategies of sensitivity 1, the best within a factor 3: none below."""
    steps, rates = 6, schedules.cosine(6, 0.5)
    floor = damage_floor(Momentum(0.6), [0.2, 1.0], rates)
    rng, lowest = np.random.default_rng(0), np.inf
    for _ in range(200):
        C = np.tril(rng.normal(size=(steps, steps)) * rng.uniform(0, 2)) + np.eye(steps)
        m = Mechanism.from_strategy_matrix(C + 0.05 * np.sign(np.diag(C)) * np.eye(steps))
        lowest = min(lowest, damage(m, Momentum(0.6), [0.2, 1.0], rates))
    assert floor <= lowest < 3 * floor


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mechanisms": {}}, r"mechanisms: got {}; pass"),
        ({"epsilon": 0.0}, r"epsilon: got 0\.0; pass a number in \(0, inf\)"),
        ({"epsilon": -1.0}, r"epsilon: got -1\.0; pass"),
        ({"epsilon": np.inf}, r"epsilon: got inf; pass"),
        ({"epsilon": np.nan}, r"epsilon: got nan; pass"),
        ({"delta": 0.0}, r"delta: got 0\.0; pass a number in \(0, 1\)"),
        ({"delta": 1.0}, r"delta: got 1\.0; pass a number in \(0, 1\)"),
        ({"delta": np.nan}, r"delta: got nan; pass"),
        ({"l2_clip_norm": 0.0}, r"l2_clip_norm: got 0\.0; pass"),
        ({"normalize_by": -2.0}, r"normalize_by: got -2\.0; pass"),
        ({"neighboring_relation": "swap"}, r"neighboring_relation: got 'swap'; pass one of"),
        ({"max_participations": 2}, r"min_sep: got None; give it"),
        ({"learning_rates": RATES[1:]}, r"mechanism 'iid': got horizon 12; build it for"),
        ({"spectrum": [np.nan]}, r"eigenvalues: got nan at index"),
        ({"spectrum": [-1.0]}, r'eigenvalues: got -1; .*negative="clip"'),
    ],
)
def test_bad_input(options, message):
    given = {
        "mechanisms": POOL,
        "optimizer": OPTIMIZER,
        "spectrum": EIGENVALUES,
        "learning_rates": RATES,
        "epsilon": 4.0,
        "delta": 1e-5,
    } | options
    with pytest.raises(ValueError, match="^" + message):
        rank(**given)


def test_ties_share_the_better_place():
    """sqrt and LR-aware's first reading are one mechanism under two names."""
    pool = mdp.catalogue(32, pool=["iid", "sqrt", "lr_aware_sqrt", "nsr"])
    rates, spectrum = mdp.schedules.constant(32, 0.3), mdp.spectra.log_spaced(4, 10.0)
    places = mdp.rank(pool, mdp.Momentum(0.5), spectrum, rates, epsilon=2.0, delta=1e-5)["rank"]
    assert places["sqrt"] == places["lr_aware_sqrt"]
    assert sorted(places) in ([1, 1, 3, 4], [1, 2, 2, 4], [1, 2, 3, 3])


def test_a_schedule_that_grows_without_bound_is_refused_by_name():
    with pytest.warns(UserWarning, match="unstable"):
        with pytest.raises(ValueError, match="learning_rates: got a peak of 40.*the run diverges"):
            damage_floor(Momentum(0.9), [0.1, 1.0], schedules.cosine(100, 40.0))
