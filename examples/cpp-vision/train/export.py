"""Writes the pictures that were held out as PNG files, LABEL-INDEX.png, into the folder given."""

import pathlib
import sys

from PIL import Image

from data import digits, split


def main():
    if len(sys.argv) != 2:
        raise SystemExit("usage: export.py FOLDER")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    pictures, labels = digits()
    _, held_out = split()
    for index in held_out:
        Image.fromarray(pictures[index]).save(folder / f"{labels[index]}-{index:04}.png")
    print(f"{len(held_out)} pictures in {folder}")


if __name__ == "__main__":
    main()
