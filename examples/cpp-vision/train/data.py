"""The handwritten digits of UCI as scikit-learn ships them, and the split that everything here uses."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SPLIT_SEED = 2024
HELD_OUT = 360


def digits():
    """Pictures [1797, 8, 8] of bytes (0 to 16 in the source, 0 to 255 here) and their labels [1797]."""
    pictures, labels = load_digits(return_X_y=True)
    return np.rint(pictures * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8), labels.astype(np.int64)


def split():
    """Indices for training, and those held out: a fifth, in proportion to the classes."""
    _, labels = digits()
    return train_test_split(np.arange(len(labels)), test_size=HELD_OUT, random_state=SPLIT_SEED, stratify=labels)
