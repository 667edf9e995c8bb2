"""Compares elsa-camera on a GPU with PyTorch: classes and scores of the same pictures.

usage: beside.py PROGRAM PICTURE|FOLDER... [--backend NAME]

Needs torch, safetensors and pillow. Exit status 1 if a class differs, or a score by more than 1e-4.
"""

import json
import pathlib
import subprocess
import sys
import types

import torch
from PIL import Image
from safetensors.torch import load_file

VISION = pathlib.Path(__file__).resolve().parents[2] / "cpp-vision"
MODEL = VISION / "model" / "digits.safetensors"
SIDE = 8
ALLOWED = 1e-4
# Grey has the weights of ITU-R BT.601 in 256ths, as in the program.
GREY = torch.tensor([77.0, 150.0, 29.0]) / 256


def network():
    """Returns the network that was trained, without the data that its training needs."""
    sys.modules["data"] = types.SimpleNamespace(digits=None, split=None)
    sys.path.insert(0, str(VISION / "train"))
    from train import Vit

    made = Vit()
    made.load_state_dict(load_file(MODEL))
    return made.eval()


def cells(path):
    """Returns a picture as the network's input, [8, 8], by bilinear values as the program's kernel computes them."""
    picture = Image.open(path).convert("RGB")
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    grey = pixels.view(picture.height, picture.width, 3).float() @ GREY
    size = (SIDE, SIDE)
    return torch.nn.functional.interpolate(grey[None, None], size, mode="bilinear", align_corners=False)[0, 0] / 255


def main():
    words = sys.argv[1:]
    backend = "cuda"
    if "--backend" in words[:-1]:
        at = words.index("--backend")
        backend = words[at + 1]
        del words[at : at + 2]
    if len(words) < 2:
        raise SystemExit(__doc__.split("\n\n")[1])
    command = [words[0], "--model", str(MODEL), "--json", "--format", "rgb", "--backend", backend, "--fallback", "fail"]
    lines = subprocess.run(command + words[1:], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    answers, all_ = [json.loads(line) for line in lines[:-1]], json.loads(lines[-1])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.no_grad():
        pictures = torch.stack([cells(answer["file"]) for answer in answers]).to(device)
        scores = network().to(device)(pictures).double().cpu()
    found = torch.tensor([answer["scores"] for answer in answers], dtype=torch.float64)
    different = int((found.argmax(1) != scores.argmax(1)).sum())
    worst = float((found - scores).abs().max())
    print(f"{len(answers)} pictures by {all_['backend']} {all_['device']}; PyTorch {torch.__version__} on {device}")
    print(f"{different} classes differ; scores differ by at most {worst:.1e}, allowed: {ALLOWED:.0e}")
    print(f"a picture: {all_['copies_per_frame']} copies, {all_['allocations_per_frame']} allocations, "
          f"a graph of {all_['graph_kernels']} kernels")
    if different > 0 or not worst <= ALLOWED:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
