"""Compares whole models, exported and rewritten by `elsa onnx rewrite`, alternating in one process.

`compare.py FOLDER TOOL OPERATOR [--threads 1,2] [--rounds N] [--cpu] [WORD ...]` takes the models of FOLDER that
export.py has made and whose names contain every word, rewrites them by TOOL, runs them in ONNX Runtime with the operator
library, and prints a table in Markdown. The number of threads applies to the session and to the cores of the process,
and therefore to the operator.

A round runs both, in alternating order. Times are medians, the ratio is the median over rounds of original by rewritten,
with its quartiles. --cpu measures processor time, which other programs disturb less; with several threads that
includes the time in which threads wait by spinning. Errors are the largest of any output compared with the same network
in f64, relative to the largest number of that output.

Exit status 1: an attention was not replaced, a model does not run, the rewritten one is more than four times as wrong as
the original and more than 1e-5, it chooses other classes, or a ratio is below 0.98.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

DOMAIN, OPERATOR = "ai.elsa", "ElsaAttention"
# Below this an error is rounding, regardless of the original's error.
ROUNDING = 1e-5
# Least allowed median of a ratio of times.
SLOWEST = 0.98
CPU = "CPUExecutionProvider"


def replaced(path):
    """Counts the operator's nodes in a model, including subgraphs and functions."""
    import onnx

    def count(nodes):
        total = 0
        for node in nodes:
            total += node.op_type == OPERATOR and node.domain == DOMAIN
            for attribute in node.attribute:
                for graph in [attribute.g] + list(attribute.graphs):
                    total += count(graph.node)
        return total

    model = onnx.load(str(path), load_external_data=False)
    return count(model.graph.node) + sum(count(function.node) for function in model.functions)


def error(found, wanted):
    """Returns the largest error relative to the largest expected number, over all outputs; NaN stays NaN."""
    worst = 0.0
    for x, y in zip(found, wanted):
        if x.shape != y.shape:
            return float("nan")
        difference = float(np.abs(x.astype(np.float64) - y).max() / np.abs(y).max())
        worst = difference if not difference <= worst else worst
    return worst


def right(errors):
    """Returns whether the rewritten model is not much more wrong than the original."""
    return errors[1] <= max(4 * errors[0], ROUNDING)


def measure(original, rewritten, operator, data, threads, rounds, clock, provider, tf32="0"):
    """Returns times and errors of both models, and whether the same number is the largest in each row of their answers, in
    this process, which is limited to `threads` cores. If the data has no answers, errors are relative to the original.
    Without rounds, nothing is timed. On a GPU, products are in f32 unless `tf32` is "1"."""
    clock = time.process_time if clock == "cpu" else time.perf_counter
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import onnxruntime

    providers = [CPU]
    if provider != CPU:
        onnxruntime.preload_dlls()
        # The default of this provider is products in TF32, whose inputs have 11 significant bits.
        providers = [(provider, {"use_tf32": tf32}), CPU]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.register_custom_ops_library(str(operator))
    onnxruntime.set_default_logger_severity(3)
    sessions = [
        onnxruntime.InferenceSession(str(path), options, providers=providers)
        for path in (original, rewritten)
    ]
    stored = np.load(data)
    inputs = {name[3:]: stored[name] for name in stored.files if name.startswith("in_")}
    wanted = [stored[name] for name in sorted(stored.files) if name.startswith("out_")]
    # A network may ignore some of its inputs.
    feeds = [{x.name: inputs[x.name] for x in session.get_inputs()} for session in sessions]
    found = [session.run(None, feed) for session, feed in zip(sessions, feeds)]
    errors = [error(answers, wanted or found[0]) for answers in found]
    times = [[], []]
    for round in range(-2 if rounds else 0, rounds):
        taken = [0.0, 0.0]
        for i in (0, 1) if round % 2 else (1, 0):
            start = clock()
            sessions[i].run(None, feeds[i])
            taken[i] = clock() - start
        if round >= 0:
            times[0].append(taken[0])
            times[1].append(taken[1])
    facts = {"errors": errors, "runtime": onnxruntime.__version__, "provider": sessions[1].get_providers()[0]}
    facts["same"] = all(np.array_equal(x.argmax(-1), y.argmax(-1)) for x, y in zip(*found))
    if rounds:
        ratios = [a / b for a, b in zip(*times)]
        facts["times"] = [statistics.median(x) for x in times]
        facts["ratios"] = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
    return facts


def damaged(source, target):
    """Writes a copy of a rewritten model that sets the negative numbers in the output of every operator of this project to
    zero. Returns whether the model has such an operator."""
    import onnx

    model = onnx.load(str(source))
    nodes = [node for node in model.graph.node if node.domain == DOMAIN]
    for node in nodes:
        whole, node.output[0] = node.output[0], node.output[0] + "_whole"
        at = next(i for i, other in enumerate(model.graph.node) if other == node)
        model.graph.node.insert(at + 1, onnx.helper.make_node("Relu", [node.output[0]], [whole]))
    onnx.save(model, str(target))
    return bool(nodes)


def child(words):
    original, rewritten, operator, data, threads, rounds, clock, provider = words
    print(json.dumps(measure(original, rewritten, operator, data, int(threads), int(rounds), clock, provider)))


def compared(models, operator, data, threads, rounds, clock, provider=CPU, python=sys.executable):
    """Compares two models in a process of `python`. Returns the facts of `measure`, or None and what went wrong."""
    words = [*models, operator, data, threads, rounds, clock, provider]
    line = [python, "-B", __file__, "--child"] + [str(word) for word in words]
    run = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if run.returncode != 0:
        said = run.stderr.decode(errors="replace").strip().splitlines()
        return None, said[-1] if said else f"exit status {run.returncode}"
    return json.loads(run.stdout.decode().splitlines()[-1]), None


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2:])
    from networks import structures

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("tool", type=pathlib.Path)
    parser.add_argument("operator", type=pathlib.Path)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("words", nargs="*")
    options = parser.parse_intermixed_args()
    threads = [int(count) for count in options.threads.split(",")]
    cores = len(os.sched_getaffinity(0))
    if not all(0 < count <= cores for count in threads):
        raise SystemExit(f"--threads: {options.threads}; allowed: 1 to {cores}, the cores of this process")
    models = json.loads((options.folder / "models.json").read_text())
    target = options.folder / "rewritten"
    target.mkdir(exist_ok=True)
    chosen = {name: model for name, model in models.items() if all(word in name for word in options.words)}
    if not chosen:
        raise SystemExit(f"{options.folder}: no model whose name has {' and '.join(options.words) or 'anything'}")

    clock = "cpu" if options.cpu else "elapsed"
    columns = [f"{count} thread{'s' * (count > 1)}: ms, ms, ratio (quartiles)" for count in threads]
    print(f"| model | opset | kind | replaced | {' | '.join(columns)} | error, original | rewritten |")
    print("|---|---|---|---|" + "---|" * (len(threads) + 2))
    faults, runtime = [], "?"
    for name, model in chosen.items():
        original, rewritten = options.folder / f"{name}.onnx", target / f"{name}.onnx"
        cells = [model["structure"] + (", batch open" if model["dynamic"] else ""), model["opset"], model["kind"]]
        rewritten.unlink(missing_ok=True)
        done = subprocess.run(
            [options.tool, "onnx", "rewrite", original, rewritten], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        (target / f"{name}.txt").write_bytes(done.stdout)
        if done.returncode != 0 or not rewritten.is_file():
            said = done.stdout.decode(errors="replace").strip().splitlines()
            faults.append(f"{name}: the rewriter ended with {done.returncode}: {said[-1] if said else ''}")
            continue
        count = replaced(rewritten)
        cells.append(f"{count} of {model['attentions']}")
        if count != model["attentions"]:
            faults.append(f"{name}: {count} attentions replaced; wanted: {model['attentions']}")
        errors = None
        for number in threads:
            data = options.folder / f"{name}.npz"
            found, fault = compared((original, rewritten), options.operator, data, number, options.rounds, clock)
            if fault:
                faults.append(f"{name}, {number} threads: {fault}")
                cells.append("does not run")
                continue
            runtime, errors = found["runtime"], found["errors"]
            low, ratio, high = found["ratios"]
            old, new = [1e3 * x for x in found["times"]]
            cells.append(f"{old:.1f}, {new:.1f}, **{ratio:.2f}** ({low:.2f} to {high:.2f})")
            if not ratio >= SLOWEST:
                faults.append(f"{name}, {number} threads: {ratio:.3f}; allowed: at least {SLOWEST}")
            if structures()[model["structure"]].classes and not found["same"]:
                faults.append(f"{name}, {number} threads: other classes than the original")
            if not right(errors):
                faults.append(f"{name}, {number} threads: error {errors[1]:.1e}, original {errors[0]:.1e}")
        cells += [f"{x:.1e}" for x in errors] if errors else ["", ""]
        print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)
    print(f"\nONNX Runtime {runtime}, {options.rounds} rounds, {clock} time.")
    for line in faults:
        print(f"failed: {line}")
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
