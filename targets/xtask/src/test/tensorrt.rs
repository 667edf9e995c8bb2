//! The stage `tensorrt`: the plugin `examples/tensorrt`, compiled against TensorRT's headers, and driven through its own
//! interface by a stand-in for TensorRT, through the stand-in driver.

use super::cargo::with_standin;
use super::vision::{dist, make};
use crate::boards::target::HOST;
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::time::Duration;

const EXAMPLE: &str = "examples/tensorrt";
/// The library first: the program loads it.
const TARGETS: [&str; 2] = ["elsa_tensorrt", "tensorrt-tests"];
/// The sanitizers of both. What the driver does to memory is looked at by `cuda-asan`.
const SANITIZED: &str = "-DCMAKE_CXX_FLAGS=-Werror -g -fsanitize=address,undefined -fno-sanitize-recover=all";

/// The stage `tensorrt`.
pub fn tensorrt(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    for name in ["cmake", "make", "g++"] {
        setup::program(tree, name, name)?;
    }
    let headers = setup::tensorrt(tree)?;
    let here = dist(tree, HOST)?;
    let driver = standin::build(tree, Variant::Plain)?;
    let dir = tree.target.join("tensorrt");
    let more = [
        format!("-DTENSORRT_INCLUDE={}", headers.tensorrt.display()),
        format!("-DCUDA_INCLUDE={}", headers.cuda.display()),
        SANITIZED.to_owned(),
    ];
    make(tree, EXAMPLE, &TARGETS, setup::oldest_cmake(tree)?.as_deref(), &dir, &here, &more)?;
    let run = Run::new(tree, "").arg(dir.join(TARGETS[1])).arg(dir.join("libelsa_tensorrt.so"));
    let run = with_standin(run, &driver).limit(Duration::from_secs(120));
    let line = run.line();
    let out = run.run();
    let last = out.stdout.lines().last().and_then(|last| last.strip_suffix(" checks")?.parse::<u64>().ok());
    let good = out.ok && last.is_some_and(|count| count > 0);
    ran.add(&line, good, last.filter(|_| good).unwrap_or(0), u64::from(!good));
    Ok(())
}
