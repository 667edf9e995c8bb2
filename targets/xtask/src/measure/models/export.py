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

SEED = 11
ROOT = pathlib.Path(__file__).resolve().parents[5]


def timm_model(name, fused, **options):
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(fused)
    return timm.create_model(name, pretrained=False, **options)


def picture(side, batch=1):
    def inputs():
        return {"pixels": torch.randn(batch, 3, side, side)}

    return inputs


class Digits(torch.nn.Module):
    """The network of examples/cpp-vision/train/train.py, with its attention as one operation or several."""

    def __init__(self, fused):
        super().__init__()
        sys.path.insert(0, str(ROOT / "examples/cpp-vision/train"))
        from safetensors.torch import load_file

        weights = load_file(ROOT / "examples/cpp-vision/model/digits.safetensors")
        self.fused, self.heads, self.blocks = fused, 4, 3
        self.names = sorted(weights)
        for name in self.names:
            self.register_buffer(name.replace(".", "_"), weights[name])

    def linear(self, x, name):
        return torch.nn.functional.linear(x, getattr(self, name + "_weight"), getattr(self, name + "_bias"))

    def norm(self, x, name):
        weight, bias = getattr(self, name + "_weight"), getattr(self, name + "_bias")
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias)

    def forward(self, pixels):
        b = pixels.shape[0]
        patches = pixels.reshape(b, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(b, 16, 4)
        x = torch.cat([self.cls.expand(b, -1, -1), self.linear(patches, "patch")], 1) + self.pos
        for i in range(self.blocks):
            block = f"blocks_{i}_"
            n, width = x.shape[1], x.shape[2]
            qkv = self.linear(self.norm(x, block + "norm1"), block + "qkv")
            q, k, v = qkv.reshape(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
            if self.fused:
                y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            else:
                y = ((q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
            x = x + self.linear(y.transpose(1, 2).reshape(b, n, width), block + "proj")
            hidden = torch.nn.functional.gelu(self.linear(self.norm(x, block + "norm2"), block + "fc1"))
            x = x + self.linear(hidden, block + "fc2")
        return self.linear(self.norm(x[:, 0], "norm"), "head")


class First(torch.nn.Module):
    """A network of transformers that takes tensors by position and returns the named tensors."""

    def __init__(self, net, names, outputs):
        super().__init__()
        self.net, self.names, self.outputs = net, names, outputs

    def forward(self, *tensors):
        answer = self.net(**dict(zip(self.names, tensors)), return_dict=True)
        found = tuple(getattr(answer, name) for name in self.outputs)
        return found if len(found) > 1 else found[0]


def clip(layers, vocabulary):
    def make(fused):
        from transformers import CLIPConfig, CLIPModel

        text = {"num_hidden_layers": layers, "vocab_size": vocabulary, "eos_token_id": vocabulary - 1}
        config = CLIPConfig(text_config=text, vision_config={"num_hidden_layers": layers, "patch_size": 16})
        config._attn_implementation = "sdpa" if fused else "eager"
        names = ["input_ids", "pixel_values", "attention_mask"]
        return First(CLIPModel(config), names, ["text_embeds", "image_embeds"])

    def inputs():
        ids = torch.randint(1, vocabulary - 1, (1, 77))
        ids[:, -20:] = vocabulary - 1
        mask = torch.ones(1, 77, dtype=torch.int64)
        mask[:, -19:] = 0
        return {"input_ids": ids, "pixel_values": torch.randn(1, 3, 224, 224), "attention_mask": mask}

    return make, inputs


def bert(layers, tokens, vocabulary):
    def make(fused):
        from transformers import BertConfig, BertModel

        config = BertConfig(num_hidden_layers=layers, vocab_size=vocabulary)
        config._attn_implementation = "sdpa" if fused else "eager"
        return First(BertModel(config), ["input_ids", "attention_mask"], ["last_hidden_state", "pooler_output"])

    def inputs():
        mask = torch.ones(1, tokens, dtype=torch.int64)
        mask[:, -tokens // 8 :] = 0
        return {"input_ids": torch.randint(0, vocabulary, (1, tokens)), "attention_mask": mask}

    return make, inputs


def structures():
    """Returns by name: a function that makes the network (`fused` or not), one that makes its inputs, and the number of
    attention calls."""
    clip_make, clip_inputs = clip(12, 4096)
    clip2_make, clip2_inputs = clip(2, 4096)
    bert_make, bert_inputs = bert(12, 384, 4096)
    bert2_make, bert2_inputs = bert(2, 128, 4096)
    tiny, base, swin = "vit_tiny_patch16_224", "vit_base_patch16_224", "swin_tiny_patch4_window7_224"
    return {
        "digits": (lambda fused: Digits(fused), lambda: {"pixels": torch.rand(1, 8, 8)}, 3),
        "vit_tiny_224": (lambda fused: timm_model(tiny, fused), picture(224), 12),
        "vit_tiny_512": (lambda fused: timm_model(tiny, fused, img_size=512), picture(512), 12),
        "vit_base_2": (lambda fused: timm_model(base, fused, depth=2), picture(224), 2),
        "vit_base": (lambda fused: timm_model(base, fused), picture(224), 12),
        "swin_tiny": (lambda fused: timm_model(swin, fused), picture(224), 12),
        "clip_2": (clip2_make, clip2_inputs, 4),
        "clip": (clip_make, clip_inputs, 24),
        "bert_2": (bert2_make, bert2_inputs, 2),
        "bert": (bert_make, bert_inputs, 12),
    }


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


def export(case, entry, folder):
    structure, kind, opset, dynamic = case
    make, make_inputs, attentions = entry
    torch.manual_seed(SEED)
    net = make(kind == "fused").eval()
    if structure != "digits":
        # Networks with their authors' initial weights attend nearly evenly; larger weights make attention matter.
        for name, weight in net.named_parameters():
            if weight.dim() == 2 and any(word in name for word in ("qkv", "q_proj", "k_proj", "query", "key")):
                weight.data.mul_(4)
            if "relative_position_bias_table" in name:
                weight.data.normal_()
    inputs = make_inputs()
    names, tensors = list(inputs), tuple(inputs.values())
    path = folder / f"{name_of(case)}.onnx"
    with torch.no_grad():
        exact = copy.deepcopy(net).double()
        wide = tuple(x.double() if x.is_floating_point() else x for x in tensors)
        answers = exact(*wide)
        del exact
        answers = answers if isinstance(answers, tuple) else (answers,)
        outputs = [f"y{i}" for i in range(len(answers))]
        options = {"input_names": names, "output_names": outputs, "opset_version": opset}
        if opset <= 17:
            if dynamic:
                options["dynamic_axes"] = {name: {0: "batch"} for name in names + outputs}
            torch.onnx.export(net, tensors, str(path), dynamo=False, **options)
        else:
            if dynamic:
                # The exporter would treat a batch of one as a constant, so record a batch of two.
                tensors = tuple(torch.cat([x, x]) for x in tensors)
                batch = torch.export.Dim("batch", min=2, max=64)
                shapes = tuple({0: batch} for _ in names)
                options["dynamic_shapes"] = (shapes,) if isinstance(net, First) else shapes
            torch.onnx.export(net, tensors, str(path), dynamo=True, external_data=False, verbose=False, **options)
    data = {f"in_{name}": inputs[name].numpy() for name in names}
    data.update({f"out_{name}": answer.double().numpy() for name, answer in zip(outputs, answers)})
    np.savez(folder / f"{name_of(case)}.npz", **data)
    return {"structure": structure, "kind": kind, "opset": opset, "dynamic": dynamic, "attentions": attentions}


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
