"""Run files: what they mean, against values made by hand, and each bad one refused with its mend."""

import numpy as np
import optax
import pytest

import momentdp as mdp
from momentdp.tool.run import Run
from momentdp.tool.runfile import read_run

BASE = {
    "steps": "12",
    "epsilon": "4.0",
    "delta": "1e-5",
    "optimizer": "{momentum: 0.9}",
    "learning_rate": "{schedule: cosine, peak_value: 0.05}",
    "curvature": "{spectrum: log_spaced, modes: 3, condition_number: 1e2}",
    "mechanisms": "[iid, bisr]",
}
MODEL = """
import jax.numpy as jnp
import optax

H = jnp.diag(jnp.array([4.0, 2.0, 1.0, 0.5, 0.25, 0.25]))

def loss(theta, data):
    return 0.5 * theta["a"] @ H @ theta["a"] * data

parameters = {"a": jnp.ones(6)}

def public_data():
    return 3.0

def schedule(t):
    return 0.1 / (1 + t)

def factory(rate):
    return optax.sgd(rate, momentum=0.5, nesterov=True)

def adam(rate):
    return optax.adam(rate)

strategy = jnp.array([1.0, 0.5])
broken = 3
"""


@pytest.fixture
def write(tmp_path):
    """Write a run file with some keys changed (None: left out); files beside it by name."""

    def make(changes=None, **files):
        (tmp_path / "model.py").write_text(MODEL)
        for name, content in files.items():
            path = tmp_path / name.replace("__", ".")
            if isinstance(content, str):
                path.write_text(content)
            else:
                np.save(path, content)
        lines = {k: v for k, v in (BASE | (changes or {})).items() if v is not None}
        path = tmp_path / "RUN.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        return path

    return make


def test_what_a_run_file_means(write):
    run = read_run(write())
    assert (run.steps, run.epsilon, run.delta, run.bands) == (12, 4.0, 1e-5, 12)
    assert run.optimizer == mdp.Momentum(0.9)
    np.testing.assert_allclose(run.learning_rates, 0.025 * (1 + np.cos(np.pi * np.arange(12) / 12)))
    np.testing.assert_allclose(run.spectrum.eigenvalues, [0.01, 0.1, 1.0])
    assert read_run(write({"epsilon": "0.05"})).epsilon == 0.05
    assert run.pool == ["iid", "bisr"] and not run.is_repeated and run.notes == ()


def test_rates_from_a_file_and_from_optax(write):
    values = np.linspace(0.1, 0.01, 12)
    text = "\n".join(map(str, values))
    run = read_run(write({"learning_rate": "{file: lr.csv}"}, lr__csv=text))
    np.testing.assert_array_equal(run.learning_rates, values)
    run = read_run(write({"learning_rate": "{optax: 'model.py:schedule'}"}))
    np.testing.assert_allclose(run.learning_rates, 0.1 / np.arange(1, 13), rtol=1e-6)


def test_an_optax_chain_is_its_momentum(write):
    run = read_run(write({"optimizer": "{optax: 'model.py:factory'}"}))
    found = mdp.transfer(run.optimizer, run.spectrum, run.learning_rates)
    same = mdp.transfer(mdp.Momentum(0.5, nesterov=True), run.spectrum, run.learning_rates)
    np.testing.assert_allclose(found, same, rtol=1e-9)


def test_curvature_from_files(write):
    run = read_run(write({"curvature": "{file: e.csv}"}, e__csv="2.0,1\n0.5,30\n"))
    np.testing.assert_array_equal(run.spectrum.eigenvalues, [2.0, 0.5])
    np.testing.assert_array_equal(run.spectrum.multiplicities, [1.0, 30.0])
    assert "taken as public" in run.notes[0]
    H = np.array([[2.0, 1.0], [1.0, 2.0]])
    run = read_run(write({"curvature": "{matrix: h.npy, source: public}"}, h__npy=H))
    np.testing.assert_allclose(run.spectrum.eigenvalues, [1.0, 3.0])
    assert run.notes == ()
    indefinite = "{matrix: h.npy, source: public, negative: clip}"
    run = read_run(write({"curvature": indefinite}, h__npy=H - 2 * np.eye(2)))
    np.testing.assert_allclose(run.spectrum.eigenvalues, [0.0, 1.0], atol=1e-12)
    assert "set to zero" in run.notes[0]


LOSS = (
    "{loss: 'model.py:loss', parameters: 'model.py:parameters', data: 'model.py:public_data', %s}"
)


def test_curvature_from_a_loss(write):
    """loss = 3 theta' H theta / 2: five Lanczos steps find the five distinct eigenvalues of six."""
    run = read_run(write({"curvature": LOSS % "num_eigenvalues: 5, source: public"}))
    np.testing.assert_allclose(np.sort(run.spectrum.eigenvalues)[1:], [0.75, 1.5, 3, 6, 12], rtol=1e-3)  # fmt: skip
    trace = run.spectrum.eigenvalues @ run.spectrum.multiplicities
    assert trace == pytest.approx(24.0, rel=1e-4)


def test_a_seed_left_out_is_zero(write):
    values = [
        read_run(
            write({"curvature": LOSS % f"num_eigenvalues: 1, num_probes: 1, source: public{s}"})
        ).spectrum.eigenvalues.tolist()
        for s in ("", ", seed: 0", ", seed: 1")
    ]
    assert values[0] == values[1] != values[2]


def test_private_curvature_has_to_be_acknowledged(write):
    path = write({"curvature": LOSS % "source: private"})
    with pytest.raises(ValueError, match="release of its own.*private_acknowledged: true"):
        read_run(path)
    run = read_run(write({"curvature": LOSS % "source: private, private_acknowledged: true"}))
    assert "not in epsilon" in run.notes[0]


def test_strategies_of_the_user(write):
    C = np.eye(12) + 0.5 * np.eye(12, k=-1)
    own = "{mine: c.npy, theirs: 'model.py:strategy'}"
    run = read_run(write({"strategies": own}, c__npy=C))
    np.testing.assert_array_equal(run.strategies["mine"].strategy_matrix, C)
    np.testing.assert_allclose(run.strategies["theirs"].strategy_matrix, C)


def test_where_training_starts(write):
    """A loss above the minimum, spread over the modes as one size of error."""
    run = read_run(write({"start": "{loss: 2.0}"}))
    lost = 0.5 * run.spectrum.eigenvalues @ run.initial_error**2
    assert lost == pytest.approx(2.0) and np.ptp(run.initial_error) == 0
    run = read_run(write({"start": "{file: e0.csv}"}, e0__csv="1\n2\n3\n"))
    np.testing.assert_array_equal(run.initial_error, [1.0, 2.0, 3.0])


def test_linearised_adam_is_adam_with_its_preconditioner_frozen(write):
    """d e_T / d z_t in one dimension, against Adam's recursion with a given root of v."""
    scale = np.linspace(0.5, 2.0, 12)
    changes = {
        "optimizer": "{linearise: adam, momentum: 0.8, preconditioner: rms.csv}",
        "curvature": "{spectrum: isotropic, modes: 1, largest: 0.7}",
    }
    run = read_run(write(changes, rms__csv="\n".join(map(str, scale))))
    assert "Linearisation" in run.notes[0]
    peak = 0.025 * (1 + np.cos(np.pi * np.arange(12) / 12))

    def final(noise):
        error, mean = 0.0, 0.0
        for t in range(12):
            mean = 0.8 * mean + 0.2 * (0.7 * error + noise[t])
            error -= peak[t] * mean / (1 - 0.8 ** (t + 1)) / scale[t]
        return error

    found = mdp.transfer(run.optimizer, run.spectrum, run.learning_rates)[0]
    np.testing.assert_allclose(found, [final(row) for row in np.eye(12)], rtol=1e-10)


BAD = [
    ({"stepz": "3"}, r"stepz: not a key here; did you mean steps\?"),
    ({"delta": "small"}, r"delta: got 'small'; pass a number in \(0, 1\)"),
    ({"delta": None}, "delta: missing; a run file needs steps, epsilon"),
    ({"epsilon": ".nan"}, "epsilon: got nan"),
    ({"steps": "12.5"}, "steps: got 12.5; pass a whole number"),
    ({"bands": "0"}, "bands: got 0"),
    ({"clipping": "{l2_clip: 1}"}, r"clipping: l2_clip: not a key here; did you mean l2_clip_norm\?"),
    ({"clipping": "{l2_clip_norm: -1}"}, "l2_clip_norm: got -1"),
    ({"clipping": "{neighboring_relation: swap}"}, "neighboring_relation: got 'swap'; pass one of"),
    ({"clipping": "3"}, "clipping: got 3; write it as {name: value"),
    ({"participation": "{max_participations: 3}"}, "min_sep: got None; give it"),
    ({"sampling": "{data_size: 100}"}, "sampling: got data_size; give both"),
    ({"learning_rate": "{schedule: cosin, peak_value: 1}"}, "schedule: got 'cosin'; choose one of"),
    ({"learning_rate": "{schedule: cosine, peak: 1}"}, "peak: not a key here; did you mean peak_value"),
    ({"learning_rate": "{schedule: cosine}"}, "learning_rate: .*peak_value"),
    ({"learning_rate": "{schedule: constant, peak_value: 9.0}"}, "learning_rates: got peak 9 on eigenvalue 1 .*lower the rate"),
    ({"learning_rate": "{file: lr.csv}"}, "learning_rate: got 3 values; give one rate a step, 12"),
    ({"learning_rate": "{file: nan.csv}"}, "learning_rate: file: learning_rates: got nan at index"),
    ({"learning_rate": "{file: none.csv}"}, "file: got none.csv; no such file in"),
    ({"learning_rate": "{file: lr.csv, schedule: cosine}"}, "give exactly one of schedule, file, optax"),
    ({"learning_rate": "{file: text.csv}"}, "file: got text.csv; give a .npy, a .csv of numbers"),
    ({"optimizer": "{}"}, r"optimizer: momentum: got None; give it \(0 for plain SGD\)"),
    ({"optimizer": "{momentum: 1.5}"}, r"momentum: got 1.5; pass a number in \[0, 1\)"),
    ({"optimizer": "adam"}, "linearise along a recorded run"),
    ({"optimizer": "{name: adamw}"}, "name: got 'adamw'; .*linearise along a recorded run"),
    ({"optimizer": "{optax: 'model.py:adam'}"}, "not an affine map.*linearise along a recorded run"),
    ({"optimizer": "{optax: 'model.py:none'}"}, "got model.py:none; define none in model.py"),
    ({"optimizer": "{optax: 'model.py:broken'}"}, "name a function of the schedule"),
    ({"curvature": "{file: minus.csv}"}, "curvature: file: eigenvalues: got -1; .*negative: clip, which sets them to zero"),
    ({"curvature": "{file: inf.csv}"}, "eigenvalues: got inf at index"),
    ({"curvature": "{spectrum: log_spaced, condition_number: 3}"}, "modes: got None; give the number"),
    ({"curvature": "{spectrum: flat, modes: 3}"}, "spectrum: got 'flat'; choose one of isotropic"),
    ({"curvature": LOSS % "seed: 1"}, "source: got None; say whether the data are public or private"),
    ({"curvature": "{file: minus.csv, source: mine}"}, "source: got 'mine'; write public or private"),
    ({"mechanisms": "[iid, bsr]"}, "mechanisms: got bsr; choose among iid, dense"),
    ({"mechanisms": "iid"}, r"mechanisms: got 'iid'; write a list of names"),
    ({"mechanisms": "[]"}, "mechanisms: got none; name at least one"),
    ({"strategies": "{mine: other.npy}"}, "strategies: mine: .*horizon 5; build it for steps = 12"),
    ({"strategies": "{iid: other.npy}"}, "strategies: iid: got a name of the catalogue; rename"),
    ({"strategies": "{mine: upper.npy}"}, "strategies: mine: .*lower-triangular"),
    ({"start": "{loss: 1, error: 1}"}, "start: got error, loss; give exactly one of"),
]  # fmt: skip
FILES = {
    "lr__csv": "0.1\n0.2\n0.3\n",
    "nan__csv": "\n".join(["0.1"] * 11 + ["nan"]),
    "text__csv": "high\nlow\n",
    "minus__csv": "1.0\n-1.0\n",
    "inf__csv": "1.0\ninf\n",
    "other__npy": np.eye(5),
    "upper__npy": np.triu(np.ones((12, 12))),
}


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda x: str(x)[:40])
def test_bad_run_files_are_refused_with_the_mend(write, changes, message):
    path = write(changes, **FILES)
    with pytest.raises(ValueError, match=message) as refused:
        read_run(path)
    assert str(refused.value).startswith("RUN.yaml: ")


def test_a_rate_that_is_too_long_for_a_while_is_noted(write):
    run = read_run(write({"learning_rate": "{schedule: cosine, peak_value: 9.0}"}))
    assert "unstable while it lasts" in run.notes[0]


def test_long_runs_leave_matrices_out_and_say_so():
    rates = np.full(3000, 0.1)
    run = Run(3000, 1.0, 1e-5, mdp.Momentum(0.5), rates, [1.0])
    assert run.pool == ["iid", "bisr", "lr_aware_sqrt", "nsr", "momentum_bisr"]
    assert "dense, bandmf_mean" in run.notes[0]
    epochs = {"min_sep": 1000, "max_participations": 3}
    run = Run(3000, 1.0, 1e-5, mdp.Momentum(0.5), rates, [1.0], participation=epochs)
    assert "nsr" not in run.pool and run.is_repeated
    chain = mdp.LinearOptimizer.from_optax(lambda rate: optax.sgd(rate))
    assert "momentum_bisr" not in Run(3000, 1.0, 1e-5, chain, rates, [1.0]).pool
    with pytest.raises(ValueError, match="optimizer: got str; Adam and its kin"):
        Run(3000, 1.0, 1e-5, "adam", rates, [1.0])
