//! Tests `elsa onnx`: its files, its printed text, and refused requests, which write no file. Audits need ONNX Runtime,
//! so `runtime/cli/tests/onnx_audit.py` tests their results.

use crate::common::Desk;
use std::fs;

/// Encodes a field whose payload is `bytes`.
pub fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length =
        [0, 7, 14, 21, 28].map(|shift| (bytes.len() >> shift) as u8 & 127 | if shift < 28 { 128 } else { 0 });
    [&[number << 3 | 2], &length[..], bytes].concat()
}

fn node(op: &str, inputs: &[&str], output: &str, attributes: &[u8]) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| field(1, name.as_bytes())).collect();
    let name = field(3, format!("the {op}").as_bytes());
    let named = [field(2, output.as_bytes()), name, field(4, op.as_bytes())].concat();
    field(1, &[&inputs, &named[..], attributes].concat())
}

/// Encodes an integer attribute, with one element or several.
fn ints(name: &str, all: &[u8]) -> Vec<u8> {
    let values = match all {
        [one] => vec![3 << 3, *one, 0xa0, 1, 2],
        _ => [all.iter().flat_map(|&x| [8 << 3, x]).collect(), vec![0xa0, 1, 7]].concat(),
    };
    field(5, &[field(1, name.as_bytes()), values].concat())
}

/// Encodes the declaration of an f32 input or output. An axis given as zero has no fixed size.
fn info(number: u8, name: &str, axes: &[u8]) -> Vec<u8> {
    let dim = |&n: &u8| field(1, &if n == 0 { field(2, b"batch") } else { vec![1 << 3, n] });
    let tensor = [vec![1 << 3, 1], field(2, &axes.iter().flat_map(dim).collect::<Vec<u8>>())].concat();
    field(number, &[field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat())
}

/// Encodes a model of attention with a mask, whose graph also contains the fields `more`.
pub fn model(more: &[u8]) -> Vec<u8> {
    let nodes = [
        node("Transpose", &["k"], "t", &ints("perm", &[0, 1, 3, 2])),
        node("MatMul", &["q", "t"], "s", &[]),
        node("Add", &["s", "mask"], "m", &[]),
        node("Softmax", &["m"], "w", &ints("axis", &[3])),
        node("MatMul", &["w", "v"], "y", &[]),
    ];
    let inputs: Vec<u8> = ["q", "k", "v"].iter().flat_map(|name| info(11, name, &[0, 2, 5, 4])).collect();
    let outer = [inputs, info(11, "mask", &[0, 1, 1, 5]), info(12, "y", &[0, 2, 5, 4])].concat();
    let import = field(8, &[field(1, b""), vec![2 << 3, 17]].concat());
    [vec![1 << 3, 8], import, field(7, &[nodes.concat(), outer, more.to_vec()].concat())].concat()
}

/// Encodes a constant `c` whose elements are in the file `location`.
fn external(location: &str) -> Vec<u8> {
    let entry = [field(1, b"location"), field(2, location.as_bytes())].concat();
    let tensor = [vec![1 << 3, 2, 2 << 3, 1], field(8, b"c"), field(13, &entry), vec![14 << 3, 1]].concat();
    field(5, &tensor)
}

#[test]
fn attention_is_listed_and_replaced() {
    let desk = Desk::new();
    fs::write(desk.path("in.onnx"), model(&[])).unwrap();
    let line = "Softmax the Softmax: 2 heads of 4, scale 1, mask";
    let words = format!("replaced by rewrite {line}\n1 would be replaced, 0 stay");
    let facts = "attention, scores [batch, 2, 5, 5], 100.0 % of the multiply-adds";
    let listed = format!(
        "replaced by rewrite {line}\n    {facts}\n1 would be replaced, 0 stay; multiply-adds at batch = 1"
    );
    assert_eq!(desk.ok("onnx list @in.onnx").trim_end(), listed);
    let told = desk.json("onnx list @in.onnx --json");
    let attention = &told["attentions"][0];
    assert_eq!((&attention["what"], &attention["shape"]), (&"attention".into(), &"[batch, 2, 5, 5]".into()));
    assert_eq!((&attention["share"], &attention["help"]), (&1.0.into(), &().into()));
    assert_eq!(told["sizes"], "batch = 1");
    assert_eq!(desk.ok("onnx rewrite @in.onnx @out.onnx --dry-run").trim_end(), words);
    assert_eq!(desk.list(), ["in.onnx"]);
    assert!(
        desk.ok("onnx rewrite @in.onnx @out.onnx --check off")
            .contains(&format!("replaced  {line}\n1 replaced, 0 stay, written to "))
    );
    let out = fs::read(desk.path("out.onnx")).unwrap();
    for part in [&b"ElsaAttention"[..], b"ai.elsa"] {
        assert!(out.windows(part.len()).any(|window| window == part));
    }
    let told = desk.json("onnx list @out.onnx --json");
    assert_eq!((&told["what"], &told["replaced"]), (&"onnx".into(), &0.into()));
    assert_eq!(told["attentions"].as_array().map(Vec::len), Some(0));
    // IN is replaced only with --force. A link to it and another name for it count as the same file.
    let before = fs::read(desk.path("in.onnx")).unwrap();
    std::os::unix::fs::symlink("in.onnx", desk.path("link.onnx")).unwrap();
    fs::hard_link(desk.path("in.onnx"), desk.path("hard.onnx")).unwrap();
    for name in ["in", "./in", "link", "hard"] {
        let line = format!("onnx rewrite @in.onnx @{name}.onnx");
        desk.refuses(&line, &["OUT: ", "which IN reads", "allowed: another file, or --force"]);
        assert_eq!(fs::read(desk.path("in.onnx")).unwrap(), before);
    }
    desk.ok("onnx rewrite @in.onnx @in.onnx --force --check off");
    assert_eq!(fs::read(desk.path("in.onnx")).unwrap(), out);
}

#[test]
fn a_target_lowers_newer_operators() {
    let desk = Desk::new();
    // The model imports opset 17. Opset 14 has added HardSwish and Trilu.
    let newer = |op: &str| {
        let axes = [3, 4];
        [info(11, "x", &axes), node(op, &["x"], "p", &[]), info(12, "p", &axes)].concat()
    };
    fs::write(desk.path("in.onnx"), model(&newer("HardSwish"))).unwrap();
    let rewrite = "onnx rewrite @in.onnx @out.onnx --check off --target";
    let said = desk.ok(&format!("{rewrite} tensorrt-8.2"));
    let lines = "lowered   HardSwish the HardSwish: HardSigmoid, Mul\n1 lowered, 0 stay, opset 13\n1 replaced, 0 stay";
    assert!(said.contains(lines), "{said}");
    let out = fs::read(desk.path("out.onnx")).unwrap();
    let has = |part: &str| out.windows(part.len()).any(|window| window == part.as_bytes());
    assert!(has("HardSigmoid") && has("ElsaAttention") && !has("HardSwish"));
    let told = desk.json(&format!("{rewrite} onnxruntime-1.11 --json"));
    assert_eq!((&told["lowered"], &told["opset"]), (&serde_json::json!([]), &16.into()));
    let told = desk.json("onnx rewrite @in.onnx @out.onnx --check off --json");
    assert_eq!((&told["lowered"], &told["opset"]), (&().into(), &().into()));
    // A node without an older form keeps the opset, and its line gives the reason.
    fs::write(desk.path("in.onnx"), model(&newer("Trilu"))).unwrap();
    let said = desk.ok(&format!("{rewrite} opset-13"));
    assert!(said.contains("stays     Trilu the Trilu: opset 13 has no Trilu"), "{said}");
    assert!(said.contains("\n0 lowered, 1 stay, opset 17\n"), "{said}");
    desk.refuses(&format!("{rewrite} tensorrt-9"), &["--target: ", "onnxruntime-1.10, onnxruntime-1.11"]);
}

#[test]
fn the_list_names_shares_and_help() {
    let desk = Desk::new();
    // A projection of the output has 2 · 5 · 4 · 4 multiply-adds, and the attention has 2 · (2 · 5 · 5 · 4).
    let tensor = [vec![1 << 3, 4, 1 << 3, 4, 2 << 3, 1], field(8, b"c"), field(9, &[0; 64])].concat();
    let project = [field(5, &tensor), node("MatMul", &["y", "c"], "z", &[])].concat();
    fs::write(desk.path("in.onnx"), model(&project)).unwrap();
    assert!(desk.ok("onnx list @in.onnx").contains("71.4 % of the multiply-adds"));
    // The scores are an output of the model.
    fs::write(desk.path("in.onnx"), model(&info(12, "s", &[0, 2, 5, 5]))).unwrap();
    let said = desk.ok("onnx list @in.onnx");
    assert!(said.contains("stays     Softmax the Softmax: its scores are an output of the model"), "{said}");
    assert!(said.contains("\n    this would help: export the model without this output\n"), "{said}");
    let told = desk.json("onnx list @in.onnx --json");
    assert_eq!(told["attentions"][0]["help"], "export the model without this output");
    // A softmax of an input is no attention.
    let other = [info(11, "x", &[0, 2, 5, 4]), node("Softmax", &["x"], "p", &ints("axis", &[3]))].concat();
    fs::write(desk.path("in.onnx"), model(&other)).unwrap();
    assert!(desk.ok("onnx list @in.onnx").contains("\n    softmax, scores [batch, 2, 5, 4]\n"));
}

#[test]
fn links_do_not_leave_the_folder_of_the_model() {
    use std::os::unix::fs::symlink;
    let desk = Desk::new();
    for folder in ["models", "models/inner", "store"] {
        fs::create_dir(desk.path(folder)).unwrap();
    }
    fs::write(desk.path("models/in.onnx"), model(&external("in.data"))).unwrap();
    fs::write(desk.path("store/data"), [0; 8]).unwrap();
    symlink("../store/data", desk.path("models/in.data")).unwrap();
    for verb in ["list @models/in.onnx", "rewrite @models/in.onnx @models/out.onnx"] {
        let reasons = ["IN: ", "external data at 'in.data', a link that leaves the folder", "allowed: "];
        desk.refuses(&format!("onnx {verb}"), &reasons);
    }
    // A link within the folder, and links to a model and its data in one other folder.
    fs::remove_file(desk.path("models/in.data")).unwrap();
    fs::write(desk.path("models/inner/data"), [0; 8]).unwrap();
    symlink("inner/data", desk.path("models/in.data")).unwrap();
    desk.ok("onnx list @models/in.onnx");
    fs::write(desk.path("store/model"), model(&external("in.data"))).unwrap();
    for (name, target) in [("in.onnx", "../store/model"), ("in.data", "../store/data")] {
        fs::remove_file(desk.path("models").join(name)).unwrap();
        symlink(target, desk.path("models").join(name)).unwrap();
    }
    desk.ok("onnx list @models/in.onnx");
}

#[test]
fn weights_beside_a_model_stay_beside_it() {
    let desk = Desk::new();
    fs::write(desk.path("in.onnx"), model(&external("in.data"))).unwrap();
    desk.refuses("onnx rewrite @in.onnx @out.onnx", &["IN: ", "external data at 'in.data'", "allowed: "]);
    fs::write(desk.path("in.data"), [0; 8]).unwrap();
    fs::create_dir(desk.path("other")).unwrap();
    desk.refuses("onnx rewrite @in.onnx @other/out.onnx", &["OUT: ", "would not find them"]);
    // Not even --force permits OUT to replace the weights of IN, because OUT needs them too.
    fs::hard_link(desk.path("in.data"), desk.path("same.data")).unwrap();
    for name in ["in.data", "same.data", "other/../in.data"] {
        let line = format!("onnx rewrite @in.onnx @{name} --force");
        desk.refuses(&line, &["OUT: ", "which IN reads", "allowed: another file"]);
    }
    desk.ok("onnx rewrite @in.onnx @out.onnx --check off");
    assert_eq!(fs::read(desk.path("in.data")).unwrap(), [0; 8]);
}

#[test]
fn what_is_no_model_is_refused() {
    let desk = Desk::new();
    let whole = model(&[]);
    let again = node("Identity", &["q"], "s", &[]);
    let cycle = [node("Neg", &["b"], "a", &[]), node("Neg", &["a"], "b", &[])].concat();
    for (name, bytes, what) in [
        ("empty", vec![], "no graph"),
        ("half", whole[..whole.len() / 2].to_vec(), "not an ONNX model"),
        ("text", b"this is no model at all".to_vec(), "not an ONNX model"),
        ("twice", model(&again), "'s' is made twice"),
        ("cycle", model(&cycle), "without a cycle"),
        ("missing", model(&node("Neg", &["none"], "a", &[])), "reads 'none', which nothing makes"),
        ("climbs", model(&external("../in.data")), "external data at '../in.data'"),
        ("absolute", model(&external("/etc/passwd")), "external data at '/etc/passwd'"),
    ] {
        fs::write(desk.path(name), bytes).unwrap();
        for verb in ["list @NAME", "rewrite @NAME @out.onnx", "rewrite @NAME @out.onnx --dry-run"] {
            desk.refuses(&format!("onnx {}", verb.replace("NAME", name)), &["IN: ", what, "allowed: "]);
        }
    }
    fs::write(desk.path("in.onnx"), whole).unwrap();
    desk.refuses("onnx list @absent.onnx", &["IN: ", "cannot be read"]);
    desk.refuses("onnx list @", &["IN: ", "cannot be read"]);
    desk.refuses("onnx rewrite @in.onnx @none/out.onnx", &["OUT: ", "cannot be written"]);
    desk.refuses("onnx rewrite @in.onnx", &["OUT"]);
    // Wrong libraries for the check are refused.
    let rewrite = "onnx rewrite @in.onnx @out.onnx --operator";
    desk.refuses(&format!("{rewrite} @none"), &["--operator: ", "which is no file", "libelsa_ort.so"]);
    let runtime = format!("{rewrite} @in.onnx --runtime @in.onnx");
    desk.refuses(&runtime, &["--runtime: ", "cannot be loaded", "allowed: a library of ONNX Runtime"]);
    desk.refuses(&format!("{runtime} --check never"), &["--check", "auto, require, off"]);
    // An audit refuses wrong inputs before it opens ONNX Runtime.
    desk.f32("q.npy", &[1, 2, 5, 4], &[0.0; 40]);
    let audit = "onnx audit @in.onnx --runtime @in.onnx";
    for (flags, words) in [
        ("", ["--runtime: ", "cannot be loaded", "allowed: a library of ONNX Runtime"]),
        ("--input x=@q.npy", ["--input: ", "'x', which is no input of IN", "allowed: q, k, v, mask"]),
        ("--input @q.npy", ["--input", "allowed: ", "NAME=FILE.npy, NAME=FILE.npz#MEMBER or FILE.npz"]),
        ("--input q=@none.npy", ["--input: ", "none.npy", "cannot be read"]),
        ("--html @q.npy --input q=@q.npy", ["--html: ", "which --input reads", "allowed: another file"]),
        ("--html @in.onnx", ["--html: ", "which IN reads", "allowed: another file"]),
        ("--tolerance 0", ["--tolerance", "allowed: ", "a number above 0, at most 1"]),
    ] {
        desk.refuses(&format!("{audit} {flags}"), &words);
    }
}
