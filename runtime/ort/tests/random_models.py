"""Random models with attention, original and rewritten, in ONNX Runtime: random_models.py LIBRARY TOOL [--count 60]

Each model is drawn by its number and the seed alone: a layout of queries, keys and values, a mask, a scale, an element
type, and axes that are named, unnamed or fixed. `elsa onnx rewrite` replaces its attention. After a replacement both models
run at several sizes of the free axes: 1, primes, fewer queries than keys and more, and beyond every constant in the
model. They must agree at all of them. A row that attends no key may be zero if the original is NaN, by the operator's
rule. Tolerances cover the rounding of the scores, whose size the original reports, and of the values.

`--only N` runs one model, `--keep FOLDER` keeps the models that failed, `--start N` begins at another number. The
status is 1 if a model differs, or if fewer than nine in ten of those that the operator can express are replaced."""

import argparse
import collections
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime
import random_graphs

# Share of the expressible models that must be replaced.
REPLACED = 0.9
# Time limit of the tool in seconds.
LIMIT = 120


def rewrite(tool, source, target):
    """Returns the tool's report of a model's attention."""
    line = [tool, "onnx", "rewrite", source, target, "--json", "--check", "off"]
    try:
        ran = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None, "the tool takes more than %d s" % LIMIT
    if ran.returncode != 0:
        return None, "the tool ends with %d: %s" % (ran.returncode, ran.stderr.strip()[:300])
    return json.loads(ran.stdout)["attentions"], None


class Runtime:
    def __init__(self, library):
        onnxruntime.set_default_logger_severity(4)
        self.library = library

    def session(self, model):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.register_custom_ops_library(self.library)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def rows(scores):
    """Returns the largest weighted score of each row, to which rounding is relative. Scores that are equal in an entire row
    have equal weights, however large they are."""
    wide = scores.astype(np.float64)
    top = wide.max(axis=-1, keepdims=True)
    heavy = wide > top - 40
    size = np.where(heavy & np.isfinite(wide), np.abs(wide), 0).max(axis=-1)
    return np.where((wide == top).all(axis=-1), 0, size)


def allowed(drawn, feeds, scores, values, shape):
    """Returns the allowed difference of two answers, broadcast to their shape."""
    unit = 2.0**-11 if drawn.half else 2.0**-24
    values = np.abs(values.astype(np.float64)).max(initial=0)
    if scores is None:
        size = np.float64(drawn.score_size(feeds))
    else:
        size = rows(scores)
        size = size.reshape(size.shape[0] if size.ndim > 1 else 1, -1, size.shape[-1]).max(axis=1, initial=0)
        axes = [1] * len(shape)
        if drawn.batch_axis is not None:
            axes[drawn.batch_axis] = size.shape[0]
        else:
            size = size.max(axis=0, keepdims=True)
            # The rows of several sequences are stored one after another.
            if shape[drawn.token_axis] != size.shape[1]:
                size = size.max(axis=1, keepdims=True)
        axes[drawn.token_axis] = size.shape[1]
        size = size.reshape(axes)
    return unit * values * (32 + 8 * size) + np.zeros(shape)


def compare(drawn, feeds, wants, found, scores, values):
    """Returns the difference of two answers, relative to the tolerance and absolute; a fault as text."""
    worst, largest = 0.0, 0.0
    for name, want, got in zip(drawn.outputs, wants, found):
        if want.shape != got.shape or want.dtype != got.dtype:
            return 0, 0, "%s: %s of %s; the original has %s of %s" % (name, got.dtype, got.shape, want.dtype, want.shape)
        wide, other = want.astype(np.float64), got.astype(np.float64)
        if name != "y":
            if not np.array_equal(wide, other, equal_nan=True):
                return 0, 0, "%s: not a copy" % name
            continue
        none = np.isnan(wide)
        empty = none & (np.isnan(other) | (other == 0))
        difference = np.where(empty, 0, np.abs(wide - other))
        part = difference / allowed(drawn, feeds, scores, values, want.shape)
        # An element without a tolerance (0 / 0, or an unbounded score) passes; a NaN difference never does.
        part = np.where(np.isnan(part) & ~np.isnan(difference), 0, part)
        bad = ~(part <= 1)
        if bad.any():
            at = np.unravel_index(np.argmax(np.where(np.isnan(part), np.inf, part)), part.shape)
            where = "y%s is %g; the original has %g" % (list(map(int, at)), other[at], wide[at])
            return 0, 0, where + ", at %d of %d elements" % (bad.sum(), bad.size)
        worst, largest = max(worst, part.max(initial=0)), max(largest, difference.max(initial=0))
    return worst, largest, None


class Result:
    def __init__(self, drawn):
        self.drawn, self.fault, self.replaced, self.reason = drawn, None, False, None
        self.worst, self.largest, self.worlds = 0.0, 0.0, 0


def judge(result, said, runtime, source, target):
    """Runs both models at all sizes and adds the differences, or the fault, to `result`."""
    drawn = result.drawn
    result.replaced = bool(said) and all(attention["replaced"] for attention in said)
    result.reason = next((a["words"] for a in said if not a["replaced"]), "nothing found")
    if not any(attention["replaced"] for attention in said):
        return
    original = runtime.session(drawn.probe().SerializeToString())
    try:
        changed = runtime.session(target)
    except Exception as e:
        result.fault = "no session: %s" % str(e)[:300]
        return
    for sizes in drawn.worlds():
        feeds = drawn.feeds(sizes)
        try:
            wants = original.run(None, feeds)
        except Exception:
            continue
        values = wants.pop()
        scores = wants.pop() if drawn.scores else None
        result.worlds += 1
        try:
            found = changed.run(drawn.outputs, feeds)
        except Exception as e:
            result.fault = "%s: it does not run: %s" % (sizes, str(e)[-200:])
            return
        worst, largest, fault = compare(drawn, feeds, wants, found, scores, values)
        if fault:
            result.fault = "%s: %s" % (sizes, fault)
            return
        result.worst, result.largest = max(result.worst, worst), max(result.largest, largest)
    if not result.worlds:
        result.fault = "the original ran at no size"


def table(results, what, kind):
    """Prints a line for each kind: models, replaced models, their largest difference, and why others stay."""
    print("| %s | models | expressible | replaced | differ | largest difference | of what is allowed | stays |" % what)
    print("|---|---|---|---|---|---|---|---|")
    groups = collections.defaultdict(list)
    for result in results:
        groups[kind(result.drawn)].append(result)
    for name, group in sorted(groups.items()) + [("all", results)]:
        can = [r for r in group if r.drawn.expressible]
        reasons = collections.Counter(r.reason for r in can if not r.replaced)
        stays = "; ".join("%d: %s" % (n, reason[:90]) for reason, n in reasons.most_common(2)) if name != "all" else ""
        print("| %s | %d | %d | %d | %d | %.1e | %.2f | %s |" % (
            name, len(group), len(can), sum(r.replaced for r in can), sum(r.fault is not None for r in group),
            max((r.largest for r in group), default=0), max((r.worst for r in group), default=0), stays))
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("tool")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep")
    args = parser.parse_args()
    numbers = range(args.start, args.start + args.count) if args.only is None else [args.only]
    runtime = Runtime(os.path.abspath(args.library))
    results = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        def prepared(number):
            drawn = random_graphs.draw(args.seed, number)
            source, target = (os.path.join(folder, "%d%s.onnx" % (number, x)) for x in ("", ".elsa"))
            with open(source, "wb") as file:
                file.write(drawn.model().SerializeToString())
            return drawn, source, target, rewrite(args.tool, source, target)

        for number, (drawn, source, target, (said, fault)) in zip(numbers, pool.map(prepared, numbers)):
            result = Result(drawn)
            results.append(result)
            result.fault = fault
            if not fault:
                judge(result, said, runtime, source, target)
            if result.fault:
                print("FAILED: model %d (%s): %s" % (number, drawn, " ".join(result.fault.split())), flush=True)
            else:
                state = "replaced, %d sizes" % result.worlds if result.replaced else "stays: %s" % result.reason
                print("ok: model %d (%s): %s" % (number, drawn, state), flush=True)
            for path in (source, target):
                if os.path.exists(path):
                    if args.keep and (result.fault or args.only is not None):
                        os.makedirs(args.keep, exist_ok=True)
                        with open(path, "rb") as old, open(os.path.join(args.keep, os.path.basename(path)), "wb") as new:
                            new.write(old.read())
                    os.remove(path)
    print()
    table(results, "mask", lambda drawn: drawn.mask)
    table(results, "scale", lambda drawn: drawn.scale)
    table(results, "layout", lambda drawn: drawn.layout)
    failed = sum(r.fault is not None for r in results)
    can = [r for r in results if r.drawn.expressible]
    replaced = sum(r.replaced for r in can)
    enough = args.only is not None or replaced >= REPLACED * len(can)
    if not enough:
        print("FAILED: %d of %d models that the operator can express are replaced; allowed: %d %% or more" % (
            replaced, len(can), 100 * REPLACED))
    print("ONNX Runtime %s, seed %d: %d passed, %d failed; %d of %d that can be expressed are replaced" % (
        onnxruntime.__version__, args.seed, len(results) - failed, failed + (not enough), replaced, len(can)))
    return 0 if results and not failed and enough else 1


if __name__ == "__main__":
    sys.exit(main())
