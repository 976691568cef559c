"""The choice in words: what to use, whether it matters, and what the numbers cannot say."""

import numpy as np
import pandas as pd

from momentdp.figures import readable
from momentdp.tool.choice import Choice

LIMITS = (
    "The loss is a quadratic with this curvature, near its minimum; clipping does not depend on the "
    "parameters. Where curvature moves during training, trust the column *on the way* as well.",
    "The curvature is taken as public. Computing it from protected examples is a release of its own, "
    "which epsilon does not cover (H.7).",
    "epsilon holds if training respects clipping, participation and noise as stated here (H.5): the "
    "report does not watch the training code.",
)
HARDLY = 5.0  # per cent of the expected loss below which noise is said to matter little


def settings(choice: Choice) -> pd.Series:
    """The run as it was understood, one line a fact."""
    run, rates, spectrum = choice.run, choice.run.learning_rates, choice.run.spectrum
    clip = run.units
    repeated = f"at most {run.participation.get('max_participations')} times, {run.participation.get('min_sep')} steps apart or more"  # fmt: skip
    lines = {
        "steps": f"{run.steps}",
        "privacy": f"epsilon {run.epsilon:g}, delta {run.delta:g}, {clip['neighboring_relation']}",
        "clipping": f"norm {clip['l2_clip_norm']:g}, sum divided by {clip['normalize_by']:g}",
        "participation": repeated if run.is_repeated else "once",
        "amplification": _amplification(choice),
        "optimizer": _optimizer(run.optimizer),
        "learning rate": f"peak {rates.max():.4g}, first {rates[0]:.4g}, last {rates[-1]:.4g}",
        "curvature": f"{len(spectrum.eigenvalues)} modes, {spectrum.multiplicities.sum():g} "
        f"dimensions, from {spectrum.eigenvalues.min():.3g} to {spectrum.largest:.3g}",
        "peak rate x largest curvature": f"{rates.max() * spectrum.largest:.3g}",
    }
    return pd.Series(lines, name="this run")


def _optimizer(optimizer) -> str:
    if not hasattr(optimizer, "momentum"):
        return "optax code, linearised"
    parts = [f"SGD, momentum {optimizer.momentum:g}"]
    parts += ["Nesterov"] if optimizer.nesterov else []
    parts += [f"dampening {optimizer.dampening:g}"] if optimizer.dampening else []
    parts += [f"weight decay {optimizer.weight_decay:g}"] if optimizer.weight_decay else []
    return ", ".join(parts)


def _amplification(choice: Choice) -> str:
    if choice.run.sampling is None:
        return "not counted: the run file states no data size and sampling"
    counted = ", ".join(choice.amplified) or "nothing here"
    return f"(cyclic) Poisson sampling, counted for {counted}"


def recommendation(choice: Choice) -> str:
    """Markdown: what to use, how sure it is, whether it matters, what was noted."""
    table, best, streaming = choice.ranking, choice.best, choice.streaming
    row = table.loc[best]
    lines = [
        f"**Use `{best}`**, the first of {len(table)}. Its damage is {readable(row['damage'])} in the "
        f"units of your loss, {_times(row['relative_to_floor'])} what no mechanism can go below"
        f"{_beside(choice)}. A generator keeps {int(row['noise_memory'])} past noise vectors."
    ]
    if streaming != best:
        extra = 100 * (table.loc[streaming, "relative_to_best"] - 1)
        lines.append(
            f"If that is too much memory: `{streaming}` keeps "
            f"{int(table.loc[streaming, 'noise_memory'])}, at {readable(extra, 2)}% more damage."
        )
    design = str(table.index[table.index.str.startswith("synthesised")][:1].str.cat() or "")
    if design:
        lines.append(_design(choice, design))
    columns = choice.robustness.drop(columns="as given").dropna(axis=1)
    first = int((columns.loc[best] <= 1 + 1e-9).sum())
    lines.append(
        f"With curvature or momentum off by a factor two it stays first in {first} of "
        f"{columns.shape[1]} settings, and is at worst {readable(row['worst_relative'])} times the best."
    )
    steady = str(table["worst_relative"].idxmin())
    if steady != best:
        extra = 100 * (table.loc[steady, "relative_to_best"] - 1)
        lines.append(
            f"If the curvature is an estimate, or moves while you train, `{steady}` is safer: "
            f"{readable(extra, 2)}% more damage as stated, and at worst "
            f"{readable(table.loc[steady, 'worst_relative'])} times the best."
        )
    lines += [f"Warning: {text}" for text in choice.warnings]
    lines.append(matters(choice))
    lines += [f"Note: {text}" for text in choice.run.notes]
    return "\n".join(f"- {line}" for line in lines)


def _times(value: float) -> str:
    return f"{readable(value)} times"


def _beside(choice: Choice) -> str:
    if "iid" not in choice.ranking.index or choice.best == "iid":
        return ""
    less = choice.ranking.loc["iid", "relative_to_best"]
    return f"; independent noise (`iid`) does {readable(less)} times as much"


def _design(choice: Choice, name: str) -> str:
    row = choice.ranking.loc[name]
    text = f"Made for this run: `{name}` is {readable(100 * (row['relative_to_floor'] - 1), 2)}% above the floor"  # fmt: skip
    if np.isfinite(row["gap"]):
        proven = f"{max(row['gap'], 1e-6):.0e}".replace("e-0", "e-")
        return text + f"; its class has none better by more than {proven} (proven, regularised)."
    return text + "; for its class no bound is known."


def limits() -> str:
    """Markdown: what no number of the report says."""
    return "\n".join(f"- {line}" for line in LIMITS)


def side_by_side(choices: dict[str, Choice]) -> pd.DataFrame:
    """One column a run: what is best there, alone and with few vectors in memory, and by how much."""
    columns = {}
    for name, choice in choices.items():
        row, few = choice.ranking.loc[choice.best], choice.ranking.loc[choice.streaming]
        catalogue = choice.ranking[~choice.ranking.index.str.startswith("synthesised")]
        columns[name] = {
            "first": choice.best,
            "first with few buffers": choice.streaming,
            "few buffers / best": few["relative_to_best"],
            "first of the catalogue": str(catalogue.index[0]),
            "catalogue / best": catalogue["relative_to_best"].iloc[0],
            "NoiseCurve's rank": int(choice.ranking.loc["noisecurve", "rank"]),
            "damage / floor": row["relative_to_floor"],
            "sensitivity of the first": round(row["sensitivity"], 9),
            "damage on the way / best": choice.trajectory.loc[choice.best, "on the way"],
        }
    return pd.DataFrame(columns)


def matters(choice: Choice) -> str:
    """One line: how much of the expected loss the privacy noise is, and the best pair."""
    table = choice.expected
    if table.empty:
        return (
            "Whether the choice matters beside the rest of the loss is not computed: state where the "
            "run starts (`start: {loss: 2.3}`, the loss above its minimum)."
        )
    here, pair = _at_home(choice), table.loc[table["expected_loss"].idxmin()]
    share = noise_share(choice)
    verdict = ": which mechanism it is hardly matters" if share < HARDLY else ""
    momentum = "" if np.isnan(pair["momentum"]) else f"momentum {pair['momentum']:g} and "
    return (
        f"At your momentum and rate {readable(share, 2)}% of the expected loss is privacy noise "
        f"(with `{here.name}`){verdict}. From the best to the worst mechanism the expected loss "
        f"changes by a factor {readable(spread(choice))}. The least expected loss on the grid, "
        f"{readable(gain(choice))} times lower, has {momentum}peak rate "
        f"{readable(pair['learning_rate'])} with `{pair['mechanism']}`: choose them together (H.6)."
    )


def _own_pair(choice: Choice) -> pd.DataFrame:
    """Expected losses at the run's own momentum and rate."""
    table, mu = choice.expected, getattr(choice.run.optimizer, "momentum", np.nan)
    own = (table["factor"] == 1) & ((table["momentum"] == mu) | np.isnan(mu))
    return table[own].set_index("mechanism")


def _at_home(choice: Choice) -> pd.Series:
    return _own_pair(choice).loc[choice.best]


def noise_share(choice: Choice) -> float:
    """Per cent of the expected loss that is privacy noise, as the run is, with its best mechanism."""
    home = _at_home(choice)
    return float(100 * home["damage"] / home["expected_loss"])


def spread(choice: Choice) -> float:
    """Expected loss of the worst mechanism over that of the best, as the run is."""
    losses = _own_pair(choice)["expected_loss"]
    return float(losses.max() / losses.min())


def gain(choice: Choice) -> float:
    """Expected loss of the best mechanism as the run is, over the least of the whole grid."""
    return float(_at_home(choice)["expected_loss"] / choice.expected["expected_loss"].min())


def best_pairs(choice: Choice) -> pd.DataFrame:
    """For each mechanism its pair of least expected loss; * marks the best of all."""
    table = choice.expected
    if table.empty:
        return pd.DataFrame({"mechanism": []}).set_index("mechanism")
    rows = table.loc[table.groupby("mechanism")["expected_loss"].idxmin()]
    rows = rows.set_index("mechanism").sort_values("expected_loss")
    rows["privacy noise, %"] = 100 * rows["damage"] / rows["expected_loss"]
    rows["best"] = ["*", *[""] * (len(rows) - 1)]
    columns = ["best", "momentum", "learning_rate", "expected_loss", "privacy noise, %"]
    return rows[columns].dropna(axis=1, how="all")


def grid(choice: Choice, mechanism: str) -> pd.DataFrame:
    """Expected loss of one mechanism: momentum down, peak rate across."""
    table = choice.expected[choice.expected["mechanism"] == mechanism].fillna({"momentum": 0.0})
    return table.pivot(index="momentum", columns="learning_rate", values="expected_loss")
