//! Models with one node of an operator of the library, or with the standard nodes of attention, written as ONNX's
//! protobuf messages.

/// A message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn integer(mut self, field: u64, value: i64) -> Message {
        self.varint(field << 3);
        self.varint(value as u64);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Message {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn number(mut self, field: u64, value: f32) -> Message {
        self.varint(field << 3 | 5);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn text(self, field: u64, text: &str) -> Message {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u64, message: &Message) -> Message {
        self.bytes(field, &message.0)
    }
}

/// An attribute of the node.
#[derive(Clone, Copy, Debug)]
pub enum Attribute {
    Int(i64),
    Float(f32),
    Ints(&'static [i64]),
    Text(&'static str),
}

/// Name and element type of a tensor in the model. The name is empty if the node omits the tensor.
pub type Value = (&'static str, i32);

fn attribute(name: &str, value: Attribute) -> Message {
    let message = Message::default().text(1, name);
    match value {
        Attribute::Float(x) => message.number(2, x).integer(20, 1),
        Attribute::Int(x) => message.integer(3, x).integer(20, 2),
        Attribute::Text(x) => message.text(4, x).integer(20, 3),
        Attribute::Ints(xs) => xs.iter().fold(message, |message, x| message.integer(8, *x)).integer(20, 7),
    }
}

fn value((name, element): Value, sizes: &[i64]) -> Message {
    let mut tensor = Message::default().integer(1, i64::from(element));
    if !sizes.is_empty() {
        let axes = sizes.iter().map(|size| Message::default().integer(1, *size));
        tensor = tensor.message(2, &axes.fold(Message::default(), |shape, axis| shape.message(1, &axis)));
    }
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}

/// Builds a model with a node of `operator`. If `hidden`, a standard ONNX node follows its first output, so the runtime
/// must infer the type of the tensor between the two nodes.
pub fn model(
    operator: &str,
    attributes: &[(&'static str, Attribute)],
    inputs: &[Value],
    outputs: &[Value],
    hidden: bool,
) -> Vec<u8> {
    let first = outputs.first().map_or("", |(name, _)| *name);
    let inner = |name: &str| if hidden && name == first { "inner".to_owned() } else { name.to_owned() };
    let mut node = Message::default();
    for (name, _) in inputs {
        node = node.text(1, name);
    }
    for (name, _) in outputs {
        node = node.text(2, &inner(name));
    }
    node = node.text(3, "node").text(4, operator);
    for (name, value) in attributes {
        node = node.message(5, &attribute(name, *value));
    }
    let mut graph = Message::default().message(1, &node.text(7, "ai.elsa"));
    if hidden {
        let behind = Message::default().text(1, "inner").text(2, first).text(4, "Identity");
        graph = graph.message(1, &behind);
    }
    graph = graph.text(2, "graph");
    for of in inputs.iter().filter(|(name, _)| !name.is_empty()) {
        graph = graph.message(11, &value(*of, &[]));
    }
    for of in outputs.iter().filter(|(name, _)| !name.is_empty()) {
        graph = graph.message(12, &value(*of, &[]));
    }
    file(&graph)
}

/// Returns the file of a graph.
fn file(graph: &Message) -> Vec<u8> {
    let opset = |domain: &str, version| Message::default().text(1, domain).integer(2, version);
    let model = Message::default().integer(1, 7).message(7, graph);
    model.message(8, &opset("", 13)).message(8, &opset("ai.elsa", 1)).0
}

/// Builds two models of the attention of f32 tensors Q, K and V with the shape `sizes`, `[batch, heads, tokens, dim]`:
/// a node `ElsaAttention`, and standard nodes.
pub fn timed(sizes: [i64; 4]) -> [Vec<u8>; 2] {
    let node = |operator: &str, inputs: &[&str], output: &str| {
        let node = inputs.iter().fold(Message::default(), |node, name| node.text(1, name));
        node.text(2, output).text(3, output).text(4, operator)
    };
    let scale = 1.0 / (sizes[3] as f32).sqrt();
    let number = Message::default().integer(2, 1).text(8, "scale").bytes(9, &scale.to_le_bytes());
    let own = [node("ElsaAttention", &["Q", "K", "V"], "Y").text(7, "ai.elsa")];
    let standard = [
        node("Transpose", &["K"], "columns").message(5, &attribute("perm", Attribute::Ints(&[0, 1, 3, 2]))),
        node("MatMul", &["Q", "columns"], "products"),
        node("Mul", &["products", "scale"], "scores"),
        node("Softmax", &["scores"], "weights").message(5, &attribute("axis", Attribute::Int(-1))),
        node("MatMul", &["weights", "V"], "Y"),
    ];
    [&own[..], &standard[..]].map(|nodes| {
        let mut graph = nodes.iter().fold(Message::default(), |graph, node| graph.message(1, node));
        graph = graph.text(2, "graph");
        if nodes.len() > 1 {
            graph = graph.message(5, &number);
        }
        let inputs = ["Q", "K", "V"].map(|name| value((name, 1), &sizes));
        graph = inputs.iter().fold(graph, |graph, input| graph.message(11, input));
        file(&graph.message(12, &value(("Y", 1), &sizes)))
    })
}
