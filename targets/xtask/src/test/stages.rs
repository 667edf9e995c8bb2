//! The stages of `cargo xtask test`, in the order in which they run.

use super::{
    bounds, capi, cross, deploy, examples, fuzz, house, ort, python, release, sanitizers, tensorrt, vision,
    workspace,
};
use crate::gpu::ptx;
use crate::ran::Ran;
use crate::shell::Tree;

/// One stage.
pub struct Stage {
    /// Its name for `--only` and in the summary.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Whether `--fast` runs it.
    pub fast: bool,
    /// Sets up what it needs, runs it and counts.
    pub run: fn(&Tree) -> Ran,
}

/// Every stage.
pub const STAGES: [Stage; 33] = [
    Stage { name: "fmt", about: "formatting", fast: true, run: workspace::fmt },
    Stage {
        name: "house",
        about: "imports without circles, files of readable length",
        fast: true,
        run: house::house,
    },
    Stage { name: "clippy", about: "lints, warnings denied", fast: true, run: workspace::clippy },
    Stage { name: "host", about: "every test on this machine", fast: true, run: workspace::host },
    Stage {
        name: "docs",
        about: "documentation, and what the README shows",
        fast: false,
        run: workspace::docs,
    },
    Stage {
        name: "deny",
        about: "licences, versions and sources of dependencies",
        fast: false,
        run: release::deny,
    },
    Stage {
        name: "msrv",
        about: "published packages with the oldest compiler",
        fast: false,
        run: release::msrv,
    },
    Stage { name: "package", about: "what is published, packed", fast: false, run: release::package },
    Stage { name: "ptx", about: "device code, regenerated and assembled", fast: false, run: ptx::check },
    Stage {
        name: "no_std",
        about: "core and kernels linked without std",
        fast: false,
        run: workspace::no_std,
    },
    Stage {
        name: "bare-metal",
        about: "bits of an emulated Cortex-M4F",
        fast: false,
        run: workspace::bare_metal,
    },
    Stage {
        name: "aarch64",
        about: "tests on an emulated Cortex-A57, glibc 2.27",
        fast: false,
        run: workspace::aarch64,
    },
    Stage {
        name: "cross",
        about: "folders for boards, examined and emulated",
        fast: false,
        run: cross::cross,
    },
    Stage { name: "deploy", about: "over ssh to this machine", fast: false, run: deploy::deploy },
    Stage {
        name: "miri",
        about: "core, kernels, runtime and whole calls under Miri",
        fast: false,
        run: workspace::miri,
    },
    Stage {
        name: "bounds",
        about: "a minute's hunt for a violation of an error bound",
        fast: false,
        run: bounds::bounds,
    },
    Stage { name: "fuzz", about: "fuzz targets, briefly", fast: false, run: fuzz::fuzz },
    Stage {
        name: "asan",
        about: "kernels, runtime and crossing tests, AddressSanitizer",
        fast: false,
        run: sanitizers::asan,
    },
    Stage {
        name: "robot",
        about: "the robot: 1,000 frames at 100 Hz under load",
        fast: false,
        run: workspace::robot,
    },
    Stage { name: "abi", about: "the C ABI against its list", fast: false, run: capi::abi::abi },
    Stage { name: "capi", about: "C and C++ programs with the library", fast: false, run: capi::capi },
    Stage {
        name: "capi-board",
        about: "programs on an emulated Cortex-A57",
        fast: false,
        run: capi::board::emulated,
    },
    Stage {
        name: "capi-asan",
        about: "programs and library, AddressSanitizer",
        fast: false,
        run: capi::instrumented::asan,
    },
    Stage {
        name: "capi-tsan",
        about: "programs and library, ThreadSanitizer",
        fast: false,
        run: capi::instrumented::tsan,
    },
    Stage { name: "python", about: "elsa.py, by this Python and by 3.6", fast: false, run: python::python },
    Stage {
        name: "ort",
        about: "the operator of ONNX Runtime, 1.10 to the newest",
        fast: false,
        run: ort::ort,
    },
    Stage { name: "vision", about: "the C++ pipeline answers as PyTorch", fast: false, run: vision::vision },
    Stage {
        name: "examples",
        about: "the C++ real-time loop and the snippets",
        fast: false,
        run: examples::examples,
    },
    Stage {
        name: "tensorrt",
        about: "the plugin of TensorRT through its own interface",
        fast: false,
        run: tensorrt::tensorrt,
    },
    Stage { name: "tsan", about: "kernels and runtime, ThreadSanitizer", fast: false, run: sanitizers::tsan },
    Stage {
        name: "cuda",
        about: "CUDA back end through a stand-in driver",
        fast: false,
        run: workspace::cuda,
    },
    Stage { name: "cuda-asan", about: "the same, AddressSanitizer", fast: false, run: sanitizers::cuda_asan },
    Stage { name: "cuda-tsan", about: "the same, ThreadSanitizer", fast: false, run: sanitizers::cuda_tsan },
];
