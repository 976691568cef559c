"""A study of seconds: `python cnn_tiny.py FOLDER` runs it, for the test that kills it."""

import sys

import numpy as np

from momentdp.studies.cnn_study import StudySettings, run_study
from momentdp.studies.cnn_tables import NO_NOISE
from momentdp.studies.images import digits_images

STEPS = 4
SETTINGS = StudySettings(
    steps=STEPS,
    batch_size=10,
    checkpoints=(2, STEPS),
    calibration=20,
    validation=30,
    test=50,
    clip_examples=10,
    num_eigenvalues=3,
    num_probes=2,
    channels=(4, 6),
    rate_scale=0.3,
)
MECHANISMS = {
    "iid": np.eye(STEPS),
    "anti": np.eye(STEPS) - 0.5 * np.eye(STEPS, k=-1),
    NO_NOISE: np.zeros((STEPS, STEPS)),
}


def run_tiny(out, **changes):
    arguments = {"seeds": (0,), "conditions": ("momentum_cosine",), **changes}
    return run_study(SETTINGS, digits_images(), MECHANISMS, out, **arguments)


if __name__ == "__main__":
    run_tiny(sys.argv[1])
