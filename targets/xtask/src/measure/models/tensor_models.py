"""Measures whole models on a GPU with Tensor Cores: a table in Markdown.

`tensor_models.py [--form eager|graph] [--rounds N] [WORD ...]` with elsa.py on PYTHONPATH takes the models whose names contain
every word, with random weights, and runs each of them in five ways:

- torch's f32 products ("highest"),
- the same under `elsa.patch()`,
- the same under `elsa.patch(tensor_cores=True)`,
- torch's TF32 products ("high"), with torch's attention,
- torch with the model converted to f16.

A round runs each way four times until the device has finished, in alternating order; the first of the four is not timed. Times are
medians over all runs. Errors are the largest of the output relative to its largest number, compared with the model in f64.
Exit status 1: an attention that elsa does not compute, or an error under `elsa.patch()` above four times torch's.
"""

import argparse
import contextlib
import copy
import gc
import statistics
import time
import warnings

import torch

import compare
import elsa
import export
from networks import Network, named, picture
from patched import FIRST, TIMED, WARM, counted, prepared, tensors, words
from thirty_networks import by_name, of_transformers, vision

WAYS = ["torch f32", "elsa", "elsa, Tensor Cores", "torch TF32", "torch f16"]


def sam(fused):
    import transformers

    config = transformers.SamVisionConfig(image_size=1024, global_attn_indexes=[2, 5, 8, 11])
    config._attn_implementation = "sdpa" if fused else "eager"
    return named(transformers.SamVisionModel(config), ["pixel_values"], ["last_hidden_state"])


def models():
    """Returns the models by name."""
    last = ["last_hidden_state"]
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    vit = by_name("vit_base_patch16_224", num_classes=0)
    dino = vision("Dinov2Model", "Dinov2Config", last, **large, image_size=518)
    clip = vision("CLIPVisionModel", "CLIPVisionConfig", last, **large, intermediate_size=4096, image_size=336, patch_size=14)
    llama = of_transformers(
        "LlamaModel", "LlamaConfig", ["input_ids"], last, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
        num_attention_heads=16, num_key_value_heads=8, vocab_size=4096, use_cache=False,
    )  # fmt: skip
    return {
        "ViT-B/16, 197 tokens": Network(vit, picture(224), 12),
        "ViT-B/16, batch 8": Network(vit, picture(224, 8), 12),
        "DINOv2-L, 1,370 tokens": Network(dino, picture(518), 24),
        "CLIP-L/14, 577 tokens": Network(clip, picture(336), 24),
        "SAM-B, 1,024 pixels": Network(sam, picture(1024), 12),
        "Llama, 8 layers, 4,096 tokens": Network(llama, lambda: {"ids": torch.randint(3, 4096, (1, 4096))}, 8),
    }


@contextlib.contextmanager
def products(kind):
    """Lets torch multiply in f32 as `kind` says."""
    torch.set_float32_matmul_precision(kind)
    torch.backends.cudnn.allow_tf32 = kind != "highest"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False


def measure(network, form, rounds):
    """Returns for each way the seconds of every timed run, its error, and the part of torch's attentions that elsa computed."""
    torch.manual_seed(export.SEED)
    net, inputs = network.make(True).eval(), tuple(network.inputs().values())
    export.waken(net, *inputs)
    net, inputs = net.cuda(), [x.cuda() for x in inputs]
    attentions = counted(lambda: net(*inputs))
    wanted, _ = export.double(net, inputs)
    half = copy.deepcopy(net).half()
    halves = [x.half() if x.is_floating_point() else x for x in inputs]
    patches = elsa.patch(), elsa.patch(tensor_cores=True)
    plain = contextlib.nullcontext
    blocks = [plain, lambda: patches[0], lambda: patches[1], lambda: products("high"), plain]
    sides = []
    for way, block in zip(WAYS, blocks):
        with block():
            sides.append(prepared(form, *((half, halves) if way == "torch f16" else (net, inputs)), True))
    times, found = [[] for _ in WAYS], [None] * len(WAYS)
    for round in range(-WARM, rounds):
        order = range(len(WAYS)) if round % 2 else reversed(range(len(WAYS)))
        for way in order:
            with blocks[way]():
                for run in range(1 + TIMED):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    found[way] = sides[way]()
                    torch.cuda.synchronize()
                    if round >= 0 and run > 0:
                        times[way].append(time.perf_counter() - start)
    arrays = lambda found: [x.cpu().numpy() for x in tensors(found)]
    errors = [compare.error(arrays(answer), arrays(wanted)) for answer in found]
    runs = FIRST + (WARM + rounds) * (1 + TIMED) * (form != "graph")
    return times, errors, [patch.calls / runs / attentions for patch in patches]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--form", default="eager", choices=["eager", "graph"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("words", nargs="*")
    options = parser.parse_intermixed_args()
    warnings.filterwarnings("ignore")
    torch.backends.cudnn.allow_tf32 = False
    columns = ["model", *(f"{way}, ms" for way in WAYS), "torch f32 / elsa", "/ Tensor Cores", "errors, in this order"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    faults = []
    for name, network in models().items():
        if not all(word in name for word in options.words):
            continue
        try:
            with torch.inference_mode():
                times, errors, computed = measure(network, options.form, options.rounds)
        except RuntimeError as error:
            if options.form == "eager":
                raise
            # Torch cannot capture every model.
            print(f"| {name} | {words(error)} |", flush=True)
            continue
        middle = [statistics.median(x) for x in times]
        ratios = [f"**{middle[0] / x:.2f}**" for x in middle[1:3]]
        row = [name, *(f"{1e3 * x:.2f}" for x in middle), *ratios, ", ".join(f"{x:.1e}" for x in errors)]
        print(f"| {' | '.join(row)} |", flush=True)
        if any(part != 1 for part in computed):
            faults.append(f"{name}: elsa computed {computed} of the attentions")
        if not all(compare.right([errors[0], error]) for error in errors[1:3]):
            faults.append(f"{name}: errors {errors}")
        gc.collect()
        torch.cuda.empty_cache()
    device = torch.cuda.get_device_name()
    print(f"\n{device}, torch {torch.__version__}, elsa {elsa.version()}, {options.form}, {options.rounds} rounds.")
    for line in faults:
        print(f"failed: {line}")
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
