"""The handwritten digits of UCI as scikit-learn ships them, split into training and held-out pictures."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SPLIT_SEED = 2024
HELD_OUT = 360


def digits():
    """Returns the pictures, bytes [1797, 8, 8] scaled from 0-16 to 0-255, and their labels [1797]."""
    pictures, labels = load_digits(return_X_y=True)
    return np.rint(pictures * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8), labels.astype(np.int64)


def split():
    """Returns the indices for training and the held-out indices: a fifth, with the classes in proportion."""
    _, labels = digits()
    return train_test_split(np.arange(len(labels)), test_size=HELD_OUT, random_state=SPLIT_SEED, stratify=labels)
