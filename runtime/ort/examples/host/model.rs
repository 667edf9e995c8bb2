//! Models with one node `ElsaAttention`, written as ONNX's protobuf messages.

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

fn value((name, element): Value) -> Message {
    let tensor = Message::default().integer(1, i64::from(element));
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}

/// Builds a model with a node `ElsaAttention`. If `hidden`, a standard ONNX node follows it, so the runtime must infer
/// the type of the tensor between the two nodes.
pub fn model(
    attributes: &[(&'static str, Attribute)],
    inputs: &[Value],
    outputs: &[Value],
    hidden: bool,
) -> Vec<u8> {
    let inner = |name: &str| if hidden && name == "Y" { "inner".to_owned() } else { name.to_owned() };
    let mut node = Message::default();
    for (name, _) in inputs {
        node = node.text(1, name);
    }
    for (name, _) in outputs {
        node = node.text(2, &inner(name));
    }
    node = node.text(3, "attention").text(4, "ElsaAttention");
    for (name, value) in attributes {
        node = node.message(5, &attribute(name, *value));
    }
    let mut graph = Message::default().message(1, &node.text(7, "ai.elsa"));
    if hidden {
        let behind = Message::default().text(1, "inner").text(2, "Y").text(4, "Identity");
        graph = graph.message(1, &behind);
    }
    graph = graph.text(2, "graph");
    for of in inputs.iter().filter(|(name, _)| !name.is_empty()) {
        graph = graph.message(11, &value(*of));
    }
    for of in outputs.iter().filter(|(name, _)| !name.is_empty()) {
        graph = graph.message(12, &value(*of));
    }
    let opset = |domain: &str, version| Message::default().text(1, domain).integer(2, version);
    let model = Message::default().integer(1, 7).message(7, &graph);
    model.message(8, &opset("", 13)).message(8, &opset("ai.elsa", 1)).0
}
