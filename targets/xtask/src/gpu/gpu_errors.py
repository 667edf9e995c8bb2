"""Errors of attention on this machine's GPU by case, for elsa and PyTorch, and a picture of them.

    python3 gpu_errors.py [--out FOLDER]

The cases are Gaussian problems and problems with outliers, with sums that cancel, and with a tiny channel, all in FP32. Outputs
of evenly spaced rows of the last head are compared with f64. `rel_l2` is the Euclidean norm of the error over that of the exact
rows. `channel` is the largest such ratio of any channel, so an error in a small channel is not hidden by a large one. Peers run
with allow_tf32 off. Prints a JSON line for each case, and writes gpu-errors.jsonl and gpu-errors.svg.
"""

import argparse
import json
import math
import os
import time

from gpu_bench import ONE, PRODUCTS, Cell, elsa, methods, torch, truth

# Methods of the picture: key of the results, label, colour.
SHOWN = (
    (PRODUCTS, "elsa, f32 products", "#1f77b4"),
    ("elsa", "elsa, Tensor Cores", "#2ca02c"),
    (ONE, "elsa, one f16 product", "#ff7f0e"),
    ("efficient", "PyTorch, efficient", "#d62728"),
)


def outliers(which, factor):
    """Returns the change of a case: one element of every 997th key or value is `factor` times as large."""

    def change(tensors):
        tensors[which][:, :, ::997, 5] *= factor

    return change


def cancelling(tensors):
    """Makes keys equal in pairs, with values that cancel to within a few millionths."""
    _, k, v = tensors
    k[:, :, 1::2] = k[:, :, ::2]
    factors = 1 + 1e-6 * (torch.arange(v.shape[-1], device=v.device) % 3 + 1)
    v[:, :, 1::2] = -v[:, :, ::2] * factors


def tiny(tensors):
    """Makes one channel of the values a millionth of the others."""
    tensors[2][..., 7] *= 1e-6


def cases():
    """Returns labels, shapes and changes of the cases."""
    for dim in (64, 128, 256):
        for tokens in (1024, 4096, 16384):
            yield f"N(0,1), {tokens:,} tokens, head size {dim}", tokens, dim, None
    yield "keys with outliers of 1e4", 4096, 64, outliers(1, 1e4)
    for factor in (1e4, 1e6, 1e7):
        yield f"values with outliers of 1e{round(math.log10(factor))}", 4096, 64, outliers(2, factor)
    yield "values that cancel to 1e-6", 4096, 64, cancelling
    yield "a channel of values of 1e-6", 4096, 64, tiny


def measure(label, tokens, dim, change):
    """Returns the errors of all methods, and how many blocks of rows Tensor Cores refused."""
    cell = Cell(label, 1, 8, tokens, dim, cores=True)
    torch.manual_seed(1)
    tensors = [torch.randn(1, 8, tokens, dim, device="cuda") for _ in range(3)]
    if change:
        change(tensors)
    rows, wanted = truth(cell, *tensors)
    found = {"what": "gpu-errors", "case": label, "tokens": tokens, "d": dim, "errors": {}, "failed": {}}
    for name, call in methods(cell, *tensors).items():
        try:
            error = call()[-1, -1, rows].double() - wanted
        except (RuntimeError, ValueError, TypeError) as fault:
            found["failed"][name] = str(fault).splitlines()[0][:120]
            continue
        channel = (error.norm(dim=0) / wanted.norm(dim=0)).max().item()
        found["errors"][name] = {"rel_l2": (error.norm() / wanted.norm()).item(), "channel": channel}
    certificate = elsa.attention(*tensors, certify=True, **cell.ours())[-1]
    found["refused_blocks"] = certificate.refused_blocks
    return found


def picture(all_found, title):
    """Returns the SVG: a row for each case, a full mark for `rel_l2` and a hollow one for `channel`."""
    pitch, left, right, top = 22, 250, 740, 78
    values = [x for found in all_found for error in found["errors"].values() for x in error.values() if 0 < x < math.inf]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    bottom = top + pitch * len(all_found)

    def at(x):
        return left + (right - left) * (math.log10(x) - low) / (high - low)

    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {bottom + 34}" width="760" height="{bottom + 34}" role="img" '
        'aria-label="Relative error of each method, one row for each case">',
        "<style>text { font: 12px sans-serif; fill: #222; } .grid { stroke: #ddd; }</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="10" y="18" style="font-weight:bold">Error relative to f64 ({title})</text>',
    ]
    for i, (_, label, colour) in enumerate(SHOWN):
        text.append(f'<circle cx="{18 + 180 * i}" cy="36" r="4" fill="{colour}"/><text x="{27 + 180 * i}" y="40">{label}</text>')
    for power in range(low, high + 1):
        x = at(10.0**power)
        text.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 14}" y2="{bottom}"/>')
        text.append(f'<text x="{x:.1f}" y="{top - 18}" text-anchor="middle">1e{power}</text>')
    for i, found in enumerate(all_found):
        y = top + pitch * i
        refused = found["refused_blocks"]
        note = "" if not refused or not refused[0] else " *" if refused[0] == refused[1] else " †"
        text.append(f'<text x="10" y="{y + 4}">{found["case"]}{note}</text>')
        for name, _, colour in SHOWN:
            error = found["errors"].get(name, {})
            for kind, fill in (("rel_l2", colour), ("channel", "none")):
                if 0 < error.get(kind, 0) < math.inf:
                    circle = f'<circle cx="{at(error[kind]):.1f}" cy="{y}" r="4" stroke="{colour}" fill="{fill}"/>'
                    text.append(circle)
    text.append(
        f'<text x="10" y="{bottom + 22}">Full: all channels; hollow: the channel with the largest error. '
        "* f32 products computed all blocks of rows, † some.</text>"
    )
    return "\n".join(text + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=".", help="folder of the results")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU")
    all_found = []
    for case in cases():
        all_found.append(measure(*case))
        print(json.dumps(all_found[-1]), flush=True)
        torch.cuda.empty_cache()
    title = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
    lines = "".join(json.dumps(found) + "\n" for found in all_found)
    for name, content in (("gpu-errors.jsonl", lines), ("gpu-errors.svg", picture(all_found, title))):
        with open(os.path.join(arguments.out, name), "w", encoding="utf-8") as file:
            file.write(content)


if __name__ == "__main__":
    main()
