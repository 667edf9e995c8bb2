//! The stages of `cargo xtask test`. The command's list of stages also comes from here.

use super::ask::Ask;
use super::{
    arm, boards, bounds, camera, capi, check, day, deploy, examples, fuzz, install, mpi, ort, python,
    release, robot, ros, sanitizers, tensorrt, vision, workspace,
};
use crate::gpu::ptx;
use crate::ran::Ran;
use crate::shell::Tree;

/// One stage.
pub struct Stage {
    /// Name for `--only` and in the summary.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// `true` if the stage belongs to the short run.
    pub short: bool,
    /// Index of the lane. Different lanes run concurrently, in separate build folders.
    pub lane: usize,
    /// Seconds on two idle cores from an empty build folder, while the other lane is running; zero for stages that run for a
    /// given time.
    pub seconds: f64,
    /// Paths that the stage guards: after a change there, the short run includes the stage.
    pub guards: &'static [&'static str],
    /// Installs the requirements, runs the stage and counts its checks.
    pub run: fn(&Tree, Ask) -> Ran,
}

const fn short(name: &'static str, lane: usize, seconds: f64, run: fn(&Tree, Ask) -> Ran) -> Stage {
    Stage { name, about: "", short: true, lane, seconds, guards: &[], run }
}

const fn long(name: &'static str, lane: usize, seconds: f64, run: fn(&Tree, Ask) -> Ran) -> Stage {
    Stage { short: false, ..short(name, lane, seconds, run) }
}

impl Stage {
    const fn about(self, about: &'static str) -> Stage {
        Stage { about, ..self }
    }

    const fn guards(self, guards: &'static [&'static str]) -> Stage {
        Stage { guards, ..self }
    }
}

/// Every stage. Each lane runs its stages in this order.
pub const STAGES: &[Stage] = &[
    short("check", 0, 200.0, |tree, ask| check::check(tree, ask.fast))
        .about("formatting, structure, lints, dependencies, documentation"),
    short("host", 0, 560.0, |tree, ask| workspace::host(tree, ask.fast))
        .about("every test here and on the stand-in GPU; README, Python, C and C++"),
    short("onnx", 0, 50.0, |tree, _| ort::ends(tree))
        .about("the operator in the newest and the oldest ONNX Runtime; ONNX's own cases"),
    short("asan", 1, 400.0, |tree, _| sanitizers::asan(tree))
        .about("Rust, the stand-in GPU and C programs under AddressSanitizer"),
    long("tsan", 1, 450.0, |tree, _| sanitizers::tsan(tree))
        .about("everything with threads, under ThreadSanitizer")
        .guards(&[
            "core/src",
            "kernels/src",
            "runtime/capi/include",
            "runtime/capi/src",
            "runtime/src",
            "tests/capi",
            "tests/oracle",
            "tests/standin",
        ]),
    short("arm", 1, 380.0, |tree, _| arm::arm(tree))
        .about("NEON on an emulated Cortex-A57, a board's files, the ABI, bits of a Cortex-M4F"),
    long("boards", 0, 500.0, |tree, _| boards::boards(tree))
        .about("every board's folder as it is handed out: sizes, links, programs, the tool emulated")
        .guards(&[
            "Cargo.toml",
            "runtime/capi/Cargo.toml",
            "targets/aarch64.cmake",
            "targets/exceptions.txt",
            "targets/jetson-nano",
            "targets/jetson-orin",
            "targets/jetson-tx1",
            "targets/jetson-tx2",
            "targets/jetson-xavier",
            "targets/required.txt",
            "targets/src",
            "targets/tool.ld",
            "targets/xtask/src/boards",
            "targets/xtask/src/test/slices.rs",
        ]),
    long("shipped", 0, 540.0, |tree, _| capi::shipped(tree))
        .about("this machine's folder as it is handed out: clang, later standards, CMake 3.10, valgrind")
        .guards(&["runtime/capi/cmake", "runtime/capi/elsa.map", "runtime/capi/elsa.pc.in"]),
    long("install", 0, 70.0, |tree, _| install::install(tree))
        .about("packages of this machine's folder, installed into a bare root, used and removed; wheels"),
    long("python", 0, 15.0, |tree, _| python::oldest(tree))
        .about("elsa.py by Python 3.6")
        .guards(&["runtime/python"]),
    long("vision", 0, 90.0, |tree, _| vision::vision(tree))
        .about("the C++ pipeline answers as PyTorch, here and on an emulated board")
        .guards(&["examples/cpp-vision"]),
    long("camera", 0, 60.0, |tree, _| camera::camera(tree))
        .about("pictures of a camera as PyTorch, without copies: here, on the stand-in GPU and a board")
        .guards(&["examples/cpp-camera", "examples/cpp-vision"]),
    long("examples", 0, 90.0, |tree, _| examples::examples(tree))
        .about("the C++ real-time loop and all snippets, here and on an emulated board")
        .guards(&["examples/cpp-realtime", "examples/cpp-snippets"]),
    long("mpi", 0, 120.0, |tree, _| mpi::mpi(tree))
        .about("processes of Open MPI and MPICH, here and emulated: bits of one process, lost processes, data races")
        .guards(&["runtime/mpi"]),
    long("tensorrt", 0, 60.0, |tree, _| tensorrt::tensorrt(tree))
        .about("the plugin of TensorRT through its own interface")
        .guards(&["examples/tensorrt"]),
    long("deploy", 0, 60.0, |tree, _| deploy::deploy(tree))
        .about("over ssh to this machine, with a broken connection")
        .guards(&["targets/xtask/src/boards/day", "targets/xtask/src/boards/link.rs"]),
    long("board-day", 0, 900.0, |tree, _| day::day(tree))
        .about("a board day on emulated boards: interrupted, without space, root and driver; its report"),
    long("robot", 0, 60.0, |tree, _| robot::robot(tree))
        .about("the robot: 1,000 frames at 100 Hz under load, PyTorch's answers, an emulated board")
        .guards(&["examples/robot"]),
    long("ros", 0, 90.0, |tree, _| ros::ros(tree))
        .about("the node of ROS 1 under its own master: the C++ example's answers, no allocation")
        .guards(&["examples/ros", "examples/cpp-realtime", "examples/cpp-vision"]),
    long("ort", 0, 120.0, |tree, _| ort::every(tree))
        .about("the operator in every supported ONNX Runtime, here and emulated, and Python 3.6")
        .guards(&["runtime/ort"]),
    long("aarch64", 1, 900.0, |tree, _| arm::every_test(tree))
        .about("every test on an emulated Cortex-A57, glibc 2.27")
        .guards(&["kernels/src/neon"]),
    long("miri", 1, 420.0, |tree, _| workspace::miri(tree))
        .about("core, kernels, runtime and whole calls under Miri"),
    long("ptx", 1, 300.0, |tree, _| {
        let mut ran = ptx::check(tree);
        ran.join(workspace::large_device(tree));
        ran
    })
    .about("device code, regenerated, assembled, and run with many splits of the keys")
    .guards(&["examples/cpp-camera/kernels", "kernels/cuda", "kernels/ptx", "targets/xtask/src/gpu"]),
    long("msrv", 1, 60.0, |tree, _| release::msrv(tree))
        .about("published packages with the oldest compiler")
        .guards(&["Cargo.toml", "Cargo.lock"]),
    long("package", 1, 200.0, |tree, _| release::package(tree))
        .about("crates: packed, published in a rehearsal, documented; their interface; the guide's Rust"),
    long("fuzz", 1, 120.0, fuzz::fuzz).about("fuzz targets, for half of the minutes").guards(&["tests/fuzz"]),
    long("hunt", 1, 5.0, bounds::bounds)
        .about("a hunt for a violation of an error bound, for the other half")
        .guards(&["core/src/attention/bound"]),
];

/// Returns the stage of that name.
pub fn named(name: &str) -> Option<&'static Stage> {
    STAGES.iter().find(|stage| stage.name == name)
}

/// Returns the list of stages, one per line.
pub fn list() -> String {
    let line = |stage: &Stage| {
        let run = if stage.short { "short" } else { "--all" };
        format!("{:<10}{run:<7}{:>5.0} s  {}\n", stage.name, stage.seconds, stage.about)
    };
    STAGES.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn stages_are_told_apart_and_guard_what_exists() {
        let root = Tree::find().unwrap().root;
        for (at, stage) in STAGES.iter().enumerate() {
            assert!(!stage.about.is_empty() && stage.about.len() < 100, "{}", stage.name);
            assert!(STAGES[..at].iter().all(|other| other.name != stage.name), "{}", stage.name);
            for path in stage.guards {
                assert!(!stage.short && root.join(Path::new(path)).exists(), "{}: {path}", stage.name);
            }
        }
    }
}
