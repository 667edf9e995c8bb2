//! Runs the stage `tensorrt`: the plugin `examples/tensorrt`, compiled with TensorRT's headers. A program that stands in for
//! TensorRT calls the plugin's interface, on the stand-in driver.

use super::cargo::with_standin;
use super::dist::dist;
use super::vision::make;
use crate::boards::target::HOST;
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::time::Duration;

const EXAMPLE: &str = "examples/tensorrt";
/// Name of the program that stands in for TensorRT. CMake builds it together with the plugin library that it loads.
const PROGRAM: &str = "tensorrt-tests";
/// CMake arguments for both sanitizers, unoptimised to compile quickly. `cuda-asan` covers the driver's use of memory.
const SANITIZED: [&str; 2] = [
    "-DCMAKE_CXX_FLAGS=-Werror -g -fsanitize=address,undefined -fno-sanitize-recover=all",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O0",
];

/// Runs the stage `tensorrt`.
pub fn tensorrt(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    setup::programs(tree, &["cmake", "make", "g++"])?;
    let headers = setup::tensorrt(tree)?;
    let here = dist(tree, ran, HOST)?;
    let driver = standin::build(tree, Variant::Plain)?;
    let dir = tree.target.join("tensorrt");
    let mut more: Vec<String> = SANITIZED.iter().map(|flag| (*flag).to_owned()).collect();
    more.push(format!("-DTENSORRT_INCLUDE={}", headers.tensorrt.display()));
    more.push(format!("-DCUDA_INCLUDE={}", headers.cuda.display()));
    make(tree, EXAMPLE, &[PROGRAM], setup::oldest_cmake(tree)?.as_deref(), &dir, &here, &more)?;
    let run = Run::new(tree, "").arg(dir.join(PROGRAM)).arg(dir.join("libelsa_tensorrt.so"));
    let run = with_standin(run, &driver).limit(Duration::from_secs(120));
    let line = run.line();
    let out = run.run();
    let last = out.stdout.lines().last().and_then(|last| last.strip_suffix(" checks")?.parse::<u64>().ok());
    let good = out.ok && last.is_some_and(|count| count > 0);
    ran.add(&line, good, last.filter(|_| good).unwrap_or(0), u64::from(!good));
    Ok(())
}
