"""Exports models with attention to ONNX: `export.py FOLDER [WORD ...]`, all of them or those whose name contains every word.

Writes NAME.onnx, NAME.npz with inputs and the answers of the same network in f64, and a line in models.json: the model,
its opset, whether its attention was exported as one operation or several, and the number of attentions. Weights are
random, from a fixed seed, except for `digits`, which examples/cpp-vision has trained.

A name is STRUCTURE-KIND-OPSET, and ends in `-dynamic` if the batch is left open. KIND is `fused` if the network calls
scaled_dot_product_attention and `eager` if it multiplies, adds and takes the softmax itself. Opsets up to 17
are written by the exporter that records a run (TorchScript), later ones by the exporter that reads the program (dynamo).
"""

import copy
import gc
import json
import pathlib
import sys
import time
import warnings

import numpy as np
import torch

from networks import structures

SEED = 11


def cases():
    """Returns (structure, kind, opset, dynamic), the measured ones first."""
    measured = ["vit_tiny_224", "vit_tiny_512", "swin_tiny", "vit_base", "clip", "bert", "digits"]
    for structure in ["vit_tiny_224", "swin_tiny", "vit_tiny_512", "digits", "bert_2", "clip_2"]:
        for kind in ["eager", "fused"]:
            yield structure, kind, 17, False
    for structure in ["vit_tiny_224", "swin_tiny", "bert_2", "clip_2", "digits", "vit_base_2"]:
        yield structure, "fused", 18, False
        yield structure, "fused", 23, False
        yield structure, "eager", 11, False
        yield structure, "eager", 14, False
        yield structure, "fused", 14, False
        yield structure, "eager", 18, False
        yield structure, "eager", 23, False
        yield structure, "fused", 17, True
        yield structure, "eager", 17, True
        if structure not in ("bert_2", "clip_2"):  # the exporter refuses these with an open batch
            yield structure, "fused", 18, True
            yield structure, "fused", 23, True
    for structure in measured:
        for kind, opset in [("eager", 17), ("fused", 17), ("fused", 18), ("fused", 23)]:
            if structure not in ("vit_tiny_224", "swin_tiny", "digits"):
                yield structure, kind, opset, False


def name_of(case):
    structure, kind, opset, dynamic = case
    return f"{structure}-{kind}-{opset}" + ("-dynamic" if dynamic else "")


def double(net, tensors):
    """Returns the network's answers in f64; those in f32 if it does not run in f64, and which of both."""
    try:
        wide = tuple(x.double() if x.is_floating_point() else x for x in tensors)
        return copy.deepcopy(net).double()(*wide), "f64"
    except RuntimeError:  # a network that creates tensors in f32
        return net(*tensors), "f32"


def settle(net, *tensors):
    """Sets the statistics of every batch normalisation to those of the inputs. Without that, the numbers of a network
    with random weights shrink from layer to layer."""
    norms = [module for module in net.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    if norms:
        net(*tensors)
    for norm in norms:
        norm.eval()


def waken(net, *tensors):
    """Gives random weights to a network's layers that initially have no effect, so that its answer depends on every
    attention: authors set some gains, positions and matrices to zero or almost zero. Networks with their authors' initial
    weights also attend nearly evenly; larger queries and keys make attention matter, and so do larger projections for scans."""
    for name, weight in net.named_parameters():
        if weight.numel() > 1 and not name.endswith("bias") and weight.abs().max() < 1e-3:
            if weight.dim() == 1:
                weight.fill_(1)
            else:
                weight.normal_(std=0.02)
        if weight.dim() == 2 and any(word in name for word in ("qkv", "q_proj", "k_proj", "query", "key", "x_proj")):
            weight.mul_(4)
        if "relative_position_bias_table" in name:
            weight.normal_()
    # Some layers keep tensors that depend on weights, and compute them when they change to inference.
    settle(net.train().eval(), *tensors)


def dynamic_shapes(tensors, names, axes):
    """Returns the example tensors and the shapes for the exporter that reads the program."""
    if axes:
        sizes = {name: torch.export.Dim(name, min=2, max=4096) for all in axes.values() for name in all.values()}
        shapes = tuple({axis: sizes[size] for axis, size in axes.get(name, {}).items()} for name in names)
    else:
        # The exporter would treat a batch of one as a constant, so record a batch of two.
        tensors = tuple(torch.cat([x, x]) for x in tensors)
        batch = torch.export.Dim("batch", min=2, max=64)
        shapes = tuple({0: batch} for _ in names)
    return tensors, shapes


def export(case, network, folder):
    """Writes the model and the answers of the network, and returns the case's line of models.json."""
    structure, kind, opset, dynamic = case
    torch.manual_seed(SEED)
    net = network.make(kind == "fused").eval()
    inputs = network.inputs()
    names, tensors = list(inputs), tuple(inputs.values())
    path = folder / f"{name_of(case)}.onnx"
    with torch.no_grad():
        if not network.trained:
            waken(net, *tensors)
        answers, reference = (net(*tensors), "original") if network.jumps else double(net, tensors)
        answers = answers if isinstance(answers, tuple) else (answers,)
        outputs = [f"y{i:02}" for i in range(len(answers))]
        options = {"input_names": names, "output_names": outputs, "opset_version": opset}
        if opset <= 17:
            if dynamic:
                options["dynamic_axes"] = network.axes or {name: {0: "batch"} for name in names + outputs}
            torch.onnx.export(net, tensors, str(path), dynamo=False, **options)
        else:
            if dynamic:
                tensors, options["dynamic_shapes"] = dynamic_shapes(tensors, names, network.axes)
            torch.onnx.export(net, tensors, str(path), dynamo=True, external_data=False, verbose=False, **options)
    data = {f"in_{name}": inputs[name].numpy() for name in names}
    if reference != "original":
        data.update({f"out_{name}": answer.double().numpy() for name, answer in zip(outputs, answers)})
    np.savez(folder / f"{name_of(case)}.npz", **data)
    line = {"structure": structure, "kind": kind, "opset": opset, "dynamic": dynamic, "reference": reference}
    return {**line, "attentions": network.attentions}


def main():
    if len(sys.argv) < 2:
        raise SystemExit("usage: export.py FOLDER [WORD ...]")
    folder, words = pathlib.Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    index = folder / "models.json"
    found = json.loads(index.read_text()) if index.is_file() else {}
    known, failed = structures(), 0
    for case in cases():
        name = name_of(case)
        if not all(word in name for word in words) or (name in found and (folder / f"{name}.onnx").is_file()):
            continue
        start = time.perf_counter()
        try:
            found[name] = export(case, known[case[0]], folder)
        except Exception as error:  # an exporter that refuses a model is reported, and the others are still made
            failed += 1
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}", flush=True)
            continue
        finally:
            gc.collect()
        index.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"{failed} models could not be exported")


if __name__ == "__main__":
    main()
