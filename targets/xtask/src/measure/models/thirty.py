"""The thirty: exports models by two exporters, rewrites them, and reports what was replaced, and why the rest stays.

`thirty.py FOLDER TOOL OPERATOR [--rounds N] [--cpu] [--gpu PYTHON] [WORD ...]` takes the models of thirty_networks.py
whose names contain every word. Each network is exported by TorchScript at an opset from 13 to 17, and by dynamo at one
from 18 to 23. TOOL rewrites each export; both models then run in ONNX Runtime with the operator library. Results are
printed as a table in Markdown, and written to FOLDER/thirty.md and, with every fact, FOLDER/thirty.json.

--rounds times both models in turn, as in compare.py: medians over N rounds, on one thread; 0 only compares them. --cpu
measures processor time. --gpu also times them on a GPU, in a Python with onnxruntime-gpu. Errors are the largest of any
output relative to its largest number, from the same network in f64. The original model is the reference of a
model that a package contains, and of a network that selects the best of many rows.

A model is fully replaced if the tool replaces every attention in each of its exports. A model whose package is missing,
or which an exporter refuses, is in the table with the reason.

Exit status 1: a rewritten model does not run, is less than 0.98 times as fast as the original, chooses other classes, or
its answer hardly depends on its attentions; it is more than four times as wrong as the original and more than 1e-5, or
differs from it by more than 1e-4 if it is the reference; or fewer than 27 models are fully replaced, if no WORD selects
models.
"""

import argparse
import collections
import gc
import itertools
import json
import pathlib
import re
import shutil
import subprocess
import time
import traceback
import warnings

import numpy as np
import torch

import compare
import export
import thirty_networks

LEAST = 27
TORCHSCRIPT, DYNAMO = [13, 14, 15, 16, 17], [18, 20, 21, 22, 23]
# Kinds of attention in the tool's list, which also has softmaxes of other numbers.
ATTENTIONS = ("attention", "linear attention", "selective scan", "convolution")
# Number of reasons in a line of the table.
SEEN = 3
# The answer must change by more than this factor times the largest allowed error if the negative numbers in the outputs of
# all attentions are set to zero.
FELT = 10
# Allowed error relative to the original model, if there is no reference in f64.
NEAR = 1e-4


def cases(number, name, network):
    """Returns the exports of a network. A model of a package has one: itself."""
    if isinstance(network, thirty_networks.Shipped):
        return [(name, "shipped", 0, False)]
    script, dynamo = TORCHSCRIPT[number % 5], DYNAMO[number % 5]
    # Before opset 14 there is no export of scaled_dot_product_attention.
    kinds = ("eager", "fused") if script == 13 or number % 2 else ("fused", "eager")
    kinds = kinds if network.fuses else ("eager", "eager")
    return [(name, kind, opset, bool(network.axes)) for kind, opset in zip(kinds, (script, dynamo))]


def made(case, network, folder, index):
    """Makes the model and its data, unless they exist. Returns the model's path and its line of the index."""
    name = export.name_of(case)
    path = folder / f"{name}.onnx"
    if name in index and path.is_file():
        return path, index[name]
    if isinstance(network, thirty_networks.Shipped):
        # Weights in other files have the model's name and an ending.
        for file in network.path().parent.glob(f"{network.path().name}*"):
            shutil.copy(file, path if file == network.path() else folder / file.name)
        torch.manual_seed(export.SEED)
        np.savez(folder / f"{name}.npz", **{f"in_{key}": x.numpy() for key, x in network.inputs().items()})
        index[name] = {"attentions": network.attentions, "reference": "original"}
    else:
        index[name] = export.export(case, network, folder)
    return path, index[name]


def rewritten(tool, source, target):
    """Rewrites a model. Returns the attentions that the tool lists, or None and the tool's error."""
    target.unlink(missing_ok=True)
    line = [tool, "onnx", "rewrite", source, target, "--json", "--check", "off"]
    ran = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ran.returncode != 0:
        return None, f"the rewriter ended with {ran.returncode}: {ran.stderr.strip()[:300]}"
    return json.loads(ran.stdout)["attentions"], None


def reasons(listed, missing):
    """Returns why attentions stay: the tool's reasons, the most frequent first. `missing` attentions are not listed as
    such: a softmax whose products the tool does not see is listed as a softmax, and others are not listed."""
    words = lambda each: re.sub("'[^']*'", "'…'", each["words"])
    stay = collections.Counter(words(each) for each in listed if each["what"] in ATTENTIONS and not each["replaced"])
    other = collections.Counter(words(each) for each in listed if each["what"] == "softmax")
    for reason, count in other.most_common():
        taken = max(0, min(count, missing))
        stay[reason] += taken
        missing -= taken
    stay["the tool finds no attention in its nodes"] += max(0, missing)
    return [f"{count} of them: {reason}" for reason, count in stay.most_common() if count]


def judge(case, network, options, folder, index):
    """Returns the facts of one export."""
    name, kind, opset, _ = case
    exporter = "shipped" if kind == "shipped" else "TorchScript" if opset <= TORCHSCRIPT[-1] else "dynamo"
    facts = {"name": export.name_of(case), "kind": kind, "opset": opset, "exporter": exporter, "fault": None}
    facts["attentions"] = network.attentions
    start = time.perf_counter()
    try:
        path, line = made(case, network, folder, index)
    except ImportError as error:
        return {**facts, "skipped": f"not installed: {error}"}
    except Exception as error:  # an exporter that refuses a model is reported, and the others are still made
        (folder / f"{facts['name']}.txt").write_text(traceback.format_exc())
        while error.__cause__:
            error = error.__cause__
        words = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:160]
        return {**facts, "skipped": f"the exporter refuses it: {words}"}
    finally:
        gc.collect()
    facts["reference"], facts["seconds"] = line["reference"], round(time.perf_counter() - start)
    # In the folder of the original, because weights in other files are next to it.
    target = folder / f"{facts['name']}.elsa.onnx"
    listed, facts["fault"] = rewritten(options.tool, path, target)
    if facts["fault"]:
        return facts
    facts["listed"] = listed
    facts["replaced"] = sum(each["replaced"] for each in listed)
    facts["found"] = sum(each["what"] in ATTENTIONS for each in listed)
    facts["reasons"] = reasons(listed, network.attentions - facts["found"])
    models, data = (path, target), folder / f"{facts['name']}.npz"
    clock = "cpu" if options.cpu else "elapsed"
    facts["cpu"], fault = compare.compared(models, options.operator, data, 1, options.rounds, clock)
    if options.gpu and not fault:
        provider = "CUDAExecutionProvider"
        run = compare.compared(models, options.operator, data, 1, options.rounds, "elapsed", provider, options.gpu)
        facts["gpu"], fault = run
        if not fault and facts["gpu"]["provider"] != provider:
            fault = f"the session runs on {facts['gpu']['provider']}"
    for where in ("cpu", "gpu"):
        errors = (facts.get(where) or {}).get("errors")
        right = errors and (errors[1] <= NEAR if facts["reference"] == "original" else compare.right(errors))
        if errors and not right:
            fault = fault or f"{where}: error {errors[1]:.1e}, original {errors[0]:.1e}"
        if errors and network.classes and not facts[where]["same"]:
            fault = fault or f"{where}: other classes than the original"
    if facts["cpu"] and not fault:
        changed = folder / f"{facts['name']}.damaged.onnx"
        if compare.damaged(target, changed):
            run, fault = compare.compared((target, changed), options.operator, data, 1, 0, "elapsed")
            facts["damaged"] = run and run["errors"][1]
        changed.unlink()
        limit = FELT * max(4 * facts["cpu"]["errors"][0], compare.ROUNDING)
        if not fault and facts.get("damaged") is not None and not facts["damaged"] > limit:
            fault = f"the answer hardly depends on attention: {facts['damaged']:.1e}, allowed: more than {limit:.1e}"
    facts["fault"] = fault
    return facts


def full(exports):
    """Returns whether every attention of a model is replaced, in each export that could be made."""
    made = [facts for facts in exports if not facts.get("skipped")]
    return bool(made) and all(
        facts["fault"] is None and facts["replaced"] == facts["found"] == facts["attentions"] for facts in made
    )


def times(facts, rounds):
    """Returns the cell of a run's times."""
    if not facts or not rounds:
        return ""
    old, new = (1e3 * x for x in facts["times"])
    low, ratio, high = facts["ratios"]
    return f"{old:.1f}, {new:.1f}, **{ratio:.2f}** ({low:.2f} to {high:.2f})"


def row(title, facts, options):
    """Returns the line of an export in the table."""
    what = facts["exporter"] if facts["exporter"] == "shipped" else f"{facts['exporter']} {facts['opset']}, {facts['kind']}"
    cells = [title, what, facts["attentions"]]
    if facts.get("skipped") or "replaced" not in facts:
        return cells + ["", "", facts.get("skipped") or facts["fault"], "", "", ""] + [""] * (1 + bool(options.gpu))
    why = facts["reasons"][:SEEN] + (["and others"] if len(facts["reasons"]) > SEEN else [])
    why += [facts["fault"]] if facts["fault"] else []
    cells += [facts["found"], facts["replaced"], "; ".join(why)]
    cells += [f"{x:.1e}" for x in facts["cpu"]["errors"]] if facts.get("cpu") else ["", ""]
    cells.append(f"{facts['damaged']:.1e}" if facts.get("damaged") is not None else "")
    cells.append(times(facts.get("cpu"), options.rounds))
    return cells + ([times(facts.get("gpu"), options.rounds)] if options.gpu else [])


def line(cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("tool", type=pathlib.Path)
    parser.add_argument("operator", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--gpu", type=pathlib.Path, metavar="PYTHON")
    parser.add_argument("words", nargs="*")
    options = parser.parse_intermixed_args()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    stored = folder / "models.json"
    index = json.loads(stored.read_text()) if stored.is_file() else {}

    clock = "processor time" if options.cpu else "elapsed time"
    columns = ["model", "exporter, opset, kind", "attentions", "found", "replaced", "why not", "error, original"]
    columns += ["rewritten", "without negative numbers of attentions", "CPU: ms, ms, ratio (quartiles)"]
    columns += ["GPU: ms, ms, ratio (quartiles)"] * bool(options.gpu)
    lines = [line(columns), "|" + "---|" * len(columns)]
    print("\n".join(lines), flush=True)
    thirty, more = thirty_networks.thirty(), thirty_networks.shipped()
    results, number = {}, 0
    for title, networks in {**thirty, **more}.items():
        for name, network in networks.items():
            number += 1
            if not all(word in name for word in options.words):
                continue
            for case in cases(number, name, network):
                facts = judge(case, network, options, folder, index)
                results.setdefault(title, []).append(facts)
                stored.write_text(json.dumps(index, indent=1) + "\n")
                lines.append(line(row(title, facts, options)))
                print(lines[-1], flush=True)
    if not results:
        raise SystemExit(f"no model whose name has {' and '.join(options.words)}")

    counted = {title: exports for title, exports in results.items() if title in thirty}
    whole = [title for title, exports in counted.items() if full(exports)]
    runtimes = {facts["cpu"]["runtime"] for exports in results.values() for facts in exports if facts.get("cpu")}
    lines += ["", f"{len(whole)} of {len(counted)} models are fully replaced."]
    lines.append(f"ONNX Runtime {', '.join(sorted(runtimes))}; {options.rounds} rounds, {clock}, one thread.")
    print("\n".join(lines[-3:]))
    (folder / "thirty.md").write_text("\n".join(lines) + "\n")
    told = {"full": whole, "rounds": options.rounds, "clock": clock, "models": results}
    (folder / "thirty.json").write_text(json.dumps(told, indent=1) + "\n")
    every = [facts for each in results.values() for facts in each]
    faults = [f"{facts['name']}: {facts['fault']}" for facts in every if facts["fault"]]
    for facts, where in itertools.product(every, ("cpu", "gpu")):
        ratio = (facts.get(where) or {}).get("ratios", [1, 1])[1]
        if not ratio >= compare.SLOWEST:
            faults.append(f"{facts['name']}, {where}: {ratio:.3f}; allowed: at least {compare.SLOWEST}")
    if not options.words and len(whole) < LEAST:
        faults.append(f"{len(whole)} models are fully replaced; allowed: {LEAST} or more")
    for fault in faults:
        print(f"failed: {fault}")
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
