//! Runs sessions of ONNX Runtime between markers, for counting instructions in an emulator: `cargo xtask count --calls`
//! builds this program for aarch64, runs it and reads the counts.
//!
//! `count RUNTIME MODEL...`: the path of the runtime's library and of models. Next to each model, a file with the ending
//! `.txt` has a line for each input: its name and the sizes of its axes. A session has one thread. It runs once to touch
//! all memory, and then twice more. Each of the last two runs is between `hint #0x7e` and `hint #0x7f`.

use elsa_onnxruntime::{Data, HostTensor, Model, Options, Runtime};
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

/// Number of counted runs per model.
const RUNS: usize = 2;

#[cfg(target_arch = "aarch64")]
fn marked<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the hints have no effect on any aarch64 processor, and preserve the stack and the flags. The compiler must
    // assume that they access memory, so it keeps the call between them.
    unsafe { core::arch::asm!("hint #0x7e", options(nostack, preserves_flags)) };
    let result = call();
    // SAFETY: as above.
    unsafe { core::arch::asm!("hint #0x7f", options(nostack, preserves_flags)) };
    result
}

#[cfg(not(target_arch = "aarch64"))]
fn marked<T>(_: impl FnOnce() -> T) -> T {
    eprintln!("the markers are instructions of aarch64: build for it, or run `cargo xtask count --calls`");
    std::process::exit(2)
}

/// Reads the names and sizes of a model's inputs, and fills them with sines.
fn inputs(path: &Path) -> Result<Vec<(String, HostTensor)>, Failure> {
    let text = std::fs::read_to_string(path.with_extension("txt"))?;
    let input = |(rate, line): (u16, &str)| {
        let (name, sizes) = line.split_once(' ').ok_or("a line without sizes")?;
        let dims = sizes.split(' ').map(str::parse).collect::<Result<Vec<i64>, _>>()?;
        let count = dims.iter().product::<i64>();
        let numbers = (0..count).map(|i| (i as f32 * 0.37 + f32::from(rate)).sin()).collect();
        Ok((name.to_owned(), HostTensor { dims, data: Data::F32(numbers) }))
    };
    (0..).zip(text.lines()).map(input).collect()
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let runtime = Runtime::open(Path::new(&arguments.next().ok_or("allowed: RUNTIME MODEL...")?))?;
    for model in arguments {
        let path = Path::new(&model);
        let options = Options { threads: 1, ..Options::default() };
        let session = runtime.session(Model::File(path), &options)?;
        let tensors = inputs(path)?;
        let given: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        session.run(&given, &["Y"], None)?;
        for _ in 0..RUNS {
            let found = marked(|| session.run(&given, &["Y"], None))?;
            let finite = |y: &HostTensor| (0..y.data.len()).all(|i| y.data.get(i).is_finite());
            if found.is_empty() || !found.iter().all(finite) {
                return Err(format!("{model}: its answer is not finite").into());
            }
        }
        println!("{}", runtime.version);
    }
    Ok(())
}
