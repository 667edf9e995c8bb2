"""Writes the held-out pictures to the given folder as LABEL-INDEX.png, or as .jpg of the best quality."""

import pathlib
import sys

from PIL import Image

from data import digits, split


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["png"], ["jpg"]):
        raise SystemExit("usage: export.py FOLDER [png|jpg]")
    kind = sys.argv[2] if len(sys.argv) == 3 else "png"
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    pictures, labels = digits()
    _, held_out = split()
    for index in held_out:
        options = {"quality": 100} if kind == "jpg" else {}
        Image.fromarray(pictures[index]).save(folder / f"{labels[index]}-{index:04}.{kind}", **options)
    print(f"{len(held_out)} pictures in {folder}")


if __name__ == "__main__":
    main()
