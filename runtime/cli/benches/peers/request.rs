//! The options of the command line.

use elsa_core::dtype::DType;
use elsa_edge::shape::Shape;
use elsa_runtime::Backend;
use std::time::Duration;

/// Why the benchmark ends.
pub type Failure = Box<dyn std::error::Error>;

/// Sets of shapes by name. The first is measured where nothing is named.
const SETS: [(&str, &[&str], &[&str]); 4] = [
    (
        "plain",
        &[
            "1,1,64,64,64",
            "1,1,196,196,64",
            "1,12,196,196,64",
            "1,1,900,900,64",
            "1,8,1024,1024,64",
            "1,1,4096,4096,64",
            "1,8,1024,1024,128",
            "1,8,1024,1024,32",
            "1,16,1041,1041,64",
            "1,32,1,4096,128",
            "64,3,49,49,32",
        ],
        &[""],
    ),
    (
        "masks",
        &["1,12,197,197,64", "64,3,49,49,32", "4,12,256,256,32", "1,12,900,900,64"],
        &["float", "bias", "batch", "row", "bool", "padding", "true"],
    ),
    // Causal masks, shared key heads, and both: encoders, prefill and decoding.
    (
        "causal",
        &[
            "1,12,197,197,64,causal",
            "1,8,1024,1024,64,causal",
            "1,8,1024,1024,64,causal,window=128:0",
            "1,32,512,512,128,kv=8",
            "1,32,512,512,128,kv=8,causal",
            "1,32,1,4096,128,kv=8",
        ],
        &[""],
    ),
    // The stages of Swin-T for a picture of 224 x 224. The last has one window, which is never shifted.
    (
        "swin",
        &[
            "64,3,49,49,32,swin=56x56:3",
            "16,6,49,49,32,swin=28x28:3",
            "4,12,49,49,32,swin=14x14:3",
            "1,24,49,49,32,swin=7x7",
        ],
        &[""],
    ),
];

/// The shapes of a set: each of its first list with each mask of its second.
fn set(name: &str) -> Option<Result<Vec<Shape>, String>> {
    let (_, shapes, masks) = SETS.iter().find(|(of, ..)| *of == name)?;
    let each = shapes.iter().flat_map(|shape| masks.iter().map(move |mask| (shape, mask)));
    let text = |(shape, mask): (&&str, &&str)| match *mask {
        "" => (*shape).to_owned(),
        mask => format!("{shape},mask={mask}"),
    };
    Some(each.map(|pair| text(pair).parse()).collect())
}

/// How measurements are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Columns of text, every peer by itself.
    Columns,
    /// One JSON object per line.
    Json,
    /// The rows of a table in Markdown.
    Markdown,
}

/// What is measured, and how.
#[derive(Debug)]
pub struct Request {
    pub threads: usize,
    pub rounds: usize,
    slice: Option<Duration>,
    pub dtype: DType,
    pub backend: Option<Backend>,
    pub form: Form,
    pub shapes: Vec<Shape>,
}

impl Request {
    /// Reads the arguments behind the name of the program.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Request, Failure> {
        let mut request = Request {
            threads: 1,
            rounds: 25,
            slice: None,
            dtype: DType::F32,
            backend: None,
            form: Form::Columns,
            shapes: Vec::new(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg}: no value"));
            match arg.as_str() {
                "--threads" => request.threads = number(&arg, &value()?)?,
                "--rounds" => request.rounds = number(&arg, &value()?)?,
                "--slice" => request.slice = Some(Duration::from_millis(number(&arg, &value()?)? as u64)),
                "--dtype" => {
                    request.dtype = match value()?.as_str() {
                        "f32" => DType::F32,
                        "f16" => DType::F16,
                        "bf16" => DType::Bf16,
                        other => return Err(format!("--dtype: '{other}'; allowed: f32, f16, bf16").into()),
                    }
                }
                "--backend" => request.backend = Some(value()?.parse()?),
                "--json" => request.form = Form::Json,
                "--markdown" => request.form = Form::Markdown,
                // Cargo passes this to every benchmark.
                "--bench" => {}
                flag if flag.starts_with('-') => {
                    let flags = "--threads, --rounds, --slice, --dtype, --backend, --json, --markdown";
                    return Err(
                        format!("{flag}: unexpected; allowed: {flags}, and shapes or sets of them").into()
                    );
                }
                name if !name.contains(',') => {
                    let names = SETS.map(|(name, ..)| name).join(", ");
                    let shapes = set(name).ok_or(format!("'{name}'; allowed: a shape, {names}"))?;
                    request.shapes.extend(shapes?);
                }
                shape => {
                    let parsed: Shape = shape.parse().map_err(|refused| format!("'{shape}': {refused}"))?;
                    if parsed.packed.is_some() {
                        return Err(format!("'{shape}': packed sequences; allowed: dense ones").into());
                    }
                    request.shapes.push(parsed);
                }
            }
        }
        if request.shapes.is_empty()
            && let Some(shapes) = set(SETS[0].0)
        {
            request.shapes = shapes?;
        }
        Ok(request)
    }

    /// Length of a slice. Pools of several threads need longer to reach their speed.
    pub fn slice(&self) -> Duration {
        self.slice.unwrap_or(Duration::from_millis(if self.threads == 1 { 6 } else { 20 }))
    }

    /// The instruction set to which the peers are restricted, and the variables that restrict PyTorch and its
    /// matrix product to it.
    pub fn isa(&self) -> Option<(&'static str, [(&'static str, &'static str); 3])> {
        let avx2 = [
            ("ATEN_CPU_CAPABILITY", "avx2"),
            ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
            ("ONEDNN_MAX_CPU_ISA", "AVX2"),
        ];
        (self.backend == Some(Backend::AVX2)).then_some(("avx2", avx2))
    }
}

fn number(flag: &str, text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{flag}: '{text}'; allowed: a whole number from 1"))
}
