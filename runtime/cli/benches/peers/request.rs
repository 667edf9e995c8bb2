//! The options of the command line.

use elsa_core::dtype::DType;
use elsa_edge::shape::Shape;
use elsa_runtime::Backend;
use std::time::Duration;

/// Why the benchmark ends.
pub type Failure = Box<dyn std::error::Error>;

/// The default shapes.
const SHAPES: [Shape; 11] = [
    Shape::plain(1, 1, 64, 64, 64),
    Shape::plain(1, 1, 196, 196, 64),
    Shape::plain(1, 12, 196, 196, 64),
    Shape::plain(1, 1, 900, 900, 64),
    Shape::plain(1, 8, 1024, 1024, 64),
    Shape::plain(1, 1, 4096, 4096, 64),
    Shape::plain(1, 8, 1024, 1024, 128),
    Shape::plain(1, 8, 1024, 1024, 32),
    Shape::plain(1, 16, 1041, 1041, 64),
    Shape::plain(1, 32, 1, 4096, 128),
    Shape::plain(64, 3, 49, 49, 32),
];

/// What is measured, and how.
#[derive(Debug)]
pub struct Request {
    pub threads: usize,
    pub rounds: usize,
    slice: Option<Duration>,
    pub dtype: DType,
    pub backend: Option<Backend>,
    pub json: bool,
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
            json: false,
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
                "--json" => request.json = true,
                // Cargo passes this to every benchmark.
                "--bench" => {}
                flag if flag.starts_with('-') => {
                    let flags = "--threads, --rounds, --slice, --dtype, --backend, --json";
                    return Err(format!("{flag}: unexpected; allowed: {flags}, and shapes").into());
                }
                shape => {
                    let parsed = shape.parse().map_err(|refused| format!("'{shape}': {refused}"))?;
                    request.shapes.push(parsed);
                }
            }
        }
        if request.shapes.is_empty() {
            request.shapes = SHAPES.to_vec();
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
