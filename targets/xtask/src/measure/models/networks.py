"""Networks with attention, for the exports of `export.py`, and tools to describe others."""

import pathlib

import torch


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
        from safetensors.torch import load_file

        root = pathlib.Path(__file__).resolve().parents[5]
        weights = load_file(root / "examples/cpp-vision/model/digits.safetensors")
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


class Call(torch.nn.Module):
    """A network that is called by a function of itself and its inputs `names`. The function returns the outputs."""

    def __init__(self, net, call, names):
        super().__init__()
        self.net, self.call = net, call
        # The exporter that reads the program gives dynamic axes to named parameters only.
        names = ", ".join(names)
        forward = eval(f"lambda self, {names}: self.call(self.net, {names})")
        self.__class__ = type("Call", (Call,), {"forward": forward})


def named(net, names, outputs):
    """Returns a network of transformers that takes tensors by position and returns the named tensors."""

    def call(net, *tensors):
        answer = net(**dict(zip(names, tensors)), return_dict=True)
        found = tuple(getattr(answer, name) for name in outputs)
        return found if len(found) > 1 else found[0]

    return Call(net, call, names)


def clip(layers, vocabulary, text=None, image=None, width=512):
    """Returns CLIP with towers of as many layers, and its inputs. `text` and `image` are settings of the towers."""

    def make(fused):
        from transformers import CLIPConfig, CLIPModel

        ids = {"num_hidden_layers": layers, "vocab_size": vocabulary, "eos_token_id": vocabulary - 1}
        pixels = {"num_hidden_layers": layers, "patch_size": 16}
        towers = {"text_config": {**ids, **(text or {})}, "vision_config": {**pixels, **(image or {})}}
        config = CLIPConfig(**towers, projection_dim=width)
        config._attn_implementation = "sdpa" if fused else "eager"
        names = ["input_ids", "pixel_values", "attention_mask"]
        return named(CLIPModel(config), names, ["text_embeds", "image_embeds"])

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
        return named(BertModel(config), ["input_ids", "attention_mask"], ["last_hidden_state", "pooler_output"])

    def inputs():
        mask = torch.ones(1, tokens, dtype=torch.int64)
        mask[:, -tokens // 8 :] = 0
        return {"input_ids": torch.randint(0, vocabulary, (1, tokens)), "attention_mask": mask}

    return make, inputs


class Network:
    """A network to export. `make` returns it, with its attention as one operation (`fused`) or several; `inputs` returns
    its inputs by name; `attentions` is their number. `axes` names its dynamic axes: {input: {axis: name}}. A network
    without them can leave the batch open. A `trained` network keeps its weights. A network has no attention as one
    operation if `fuses` is false. A network `jumps` if it selects the best of many rows: rounding changes
    the selection, so f64 is no reference. The last axes of the outputs are `classes` of which the largest is chosen."""

    def __init__(self, make, inputs, attentions, axes=None, trained=False, fuses=True, jumps=False, classes=False):
        self.make, self.inputs, self.attentions, self.axes, self.trained = make, inputs, attentions, axes, trained
        self.fuses, self.jumps, self.classes = fuses, jumps, classes


def structures():
    """Returns the networks by name."""
    tiny, base, swin = "vit_tiny_patch16_224", "vit_base_patch16_224", "swin_tiny_patch4_window7_224"
    return {
        "digits": Network(Digits, lambda: {"pixels": torch.rand(1, 8, 8)}, 3, trained=True, classes=True),
        "vit_tiny_224": Network(lambda fused: timm_model(tiny, fused), picture(224), 12),
        "vit_tiny_512": Network(lambda fused: timm_model(tiny, fused, img_size=512), picture(512), 12),
        "vit_base_2": Network(lambda fused: timm_model(base, fused, depth=2), picture(224), 2),
        "vit_base": Network(lambda fused: timm_model(base, fused), picture(224), 12),
        "swin_tiny": Network(lambda fused: timm_model(swin, fused), picture(224), 12),
        "clip_2": Network(*clip(2, 4096), 4),
        "clip": Network(*clip(12, 4096), 24),
        "bert_2": Network(*bert(2, 128, 4096), 2),
        "bert": Network(*bert(12, 384, 4096), 12),
    }
