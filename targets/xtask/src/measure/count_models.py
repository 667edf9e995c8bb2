"""Writes models for `cargo xtask count --calls`: `count_models.py FOLDER SHAPE ...`.

FOLDER/N.onnx is shape number N, from 1, in one node Attention of opset 23, and FOLDER/0.onnx one node Identity. A file
with the ending `.txt` has a line for each input: its name and its sizes. Shapes are those of targets/xtask/qemu/shapes.c.
"""

import pathlib
import sys

from onnx import TensorProto, helper


def write(folder, number, kind, inputs, sizes, **attributes):
    value = lambda name, axes: helper.make_tensor_value_info(name, TensorProto.FLOAT, axes)
    node = helper.make_node(kind, list(inputs), ["Y"], **attributes)
    given = [value(name, axes) for name, axes in inputs.items()]
    graph = helper.make_graph([node], "count", given, [value("Y", sizes)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    (folder / f"{number}.onnx").write_bytes(model.SerializeToString())
    lines = [" ".join(map(str, [name, *axes])) for name, axes in inputs.items()]
    (folder / f"{number}.txt").write_text("\n".join(lines) + "\n")


def main():
    folder, shapes = pathlib.Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, 0, "Identity", {"Q": [1, 1, 1, 4]}, [1, 1, 1, 4])
    for number, shape in enumerate(shapes, 1):
        heads, tokens, d, *rest = shape.split(",")
        heads, _, kv_heads = heads.partition("/")
        queries, _, keys = tokens.partition(":")
        heads, queries, d = int(heads), int(queries), int(d)
        kv_heads, keys = int(kv_heads or heads), int(keys or queries)
        batch = heads // 3 if rest == ["windows"] else 1
        q = [batch, heads // batch, queries, d]
        k = [batch, kv_heads // batch, keys, d]
        inputs = {"Q": q, "K": k, "V": k}
        if rest == ["windows"]:
            inputs["mask"] = [1, q[1], queries, keys]
        causal = {"is_causal": 1} if rest == ["causal"] else {}
        write(folder, number, "Attention", inputs, q, **causal)


if __name__ == "__main__":
    main()
