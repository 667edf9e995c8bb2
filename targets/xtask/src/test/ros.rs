//! Runs the stage `ros`: builds the node `examples/ros` with Debian's packages of ROS 1, and tests it in two ways.
//!
//! The unit tests need no master; they count allocations. rostest then starts a master on a free port of the loopback
//! interface, the node by its launch file, and a client. The client publishes pictures in every encoding, and compares the
//! diagnostics with the answers that `examples/cpp-vision` prints for the same files. No process may remain.

use super::dist::dist;
use super::vision::{MODEL, count, make, program};
use crate::boards::target::HOST;
use crate::files;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use memchr::memmem;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const EXAMPLE: &str = "examples/ros";
/// The node, its unit tests, and the program whose answers the client expects.
const PROGRAMS: [&str; 3] = ["digits", "digits-tests", "elsa-vision"];
/// Packages of Debian, each with a file that it contains.
const FILES: [(&str, &str); 6] = [
    ("/usr/include/ros/ros.h", "libroscpp-dev"),
    ("/usr/include/sensor_msgs/Image.h", "libsensor-msgs-dev"),
    ("/usr/include/diagnostic_msgs/DiagnosticArray.h", "libdiagnostic-msgs-dev"),
    ("/usr/lib/python3/dist-packages/sensor_msgs", "python3-sensor-msgs"),
    ("/usr/lib/python3/dist-packages/diagnostic_msgs", "python3-diagnostic-msgs"),
    ("/usr/lib/python3/dist-packages/PIL", "python3-pil"),
];
/// Sets the environment of the built package, as a user does, and runs rostest. An interrupted rostest ends its nodes.
const SCRIPT: &str = ". \"$1/setup.sh\" && shift && export ROS_PACKAGE_PATH=\"$ROS_PACKAGE_PATH:/usr/share\" && \
                      exec timeout --signal=INT --kill-after=30 240 rostest \"$@\"";
/// Time in which processes must end after their test.
const ENDING: Duration = Duration::from_secs(5);

/// Runs the stage `ros`.
pub fn ros(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    setup::programs(tree, &["cmake", "make", "g++"])?;
    setup::file(tree, "/usr/include/stb/stb_image.h", "libstb-dev")?;
    setup::file(tree, "/usr/include/nlohmann/json.hpp", "nlohmann-json3-dev")?;
    FILES.iter().try_for_each(|(path, package)| setup::file(tree, path, package))?;
    setup::program(tree, "catkin_find", "catkin")?;
    setup::program(tree, "rostest", "python3-rostest")?;
    let pictures = setup::digits(tree)?;
    let here = dist(tree, ran, HOST)?;
    let dir = tree.target.join("ros");
    let devel = dir.join("devel");
    // Debian's log4cxx needs C++17. The system's Python has catkin's modules; another one may come first in the path.
    let defines = [
        "-DCMAKE_CXX_STANDARD=17".to_owned(),
        "-DPYTHON_EXECUTABLE=/usr/bin/python3".to_owned(),
        "-DCMAKE_PREFIX_PATH=/usr".to_owned(),
        format!("-DCATKIN_DEVEL_PREFIX={}", devel.display()),
    ];
    make(tree, EXAMPLE, &PROGRAMS, None, &dir, &here, &defines)?;
    count(ran, program(tree, "", &devel.join("lib/elsa_ros"), "digits-tests").arg(MODEL).arg(&pictures));
    let answers = dir.join("answers.json");
    let example = program(tree, "", &dir.join("realtime/vision"), "elsa-vision").args("--json --model");
    files::write(&answers, example.arg(MODEL).arg(&pictures).machine().run().text("elsa-vision")?)?;
    with_master(tree, ran, &devel, &pictures, &answers)
}

/// Runs the tests that need a master.
fn with_master(
    tree: &Tree,
    ran: &mut Ran,
    devel: &Path,
    pictures: &Path,
    answers: &Path,
) -> Result<(), String> {
    let home = tree.target.join("ros/home");
    files::empty(&home)?;
    let package = tree.root.join(EXAMPLE);
    let given = |name: &str, path: &Path| format!("{name}:={}", path.display());
    let run = Run::new(tree, "sh -c")
        .arg(SCRIPT)
        .arg("rostest")
        .arg(devel)
        .args("--package elsa_ros --pkgdir")
        .arg(&package)
        .arg(package.join("tests/digits.test"))
        .arg(given("model", &tree.root.join(MODEL)))
        .arg(given("pictures", pictures))
        .arg(given("answers", answers))
        .front(PathBuf::from("/usr/bin"))
        .env("ROS_HOME", &home)
        .env("ROS_LOG_DIR", home.join("log"))
        .env("ROS_IP", "127.0.0.1")
        .limit(Duration::from_secs(300));
    let line = run.line();
    let out = run.run();
    let number = |word: &str| summary(&out.stdout, word);
    let failed = number("ERRORS").unwrap_or(0) + number("FAILURES").unwrap_or(0);
    ran.add(&line, out.ok, number("TESTS").unwrap_or(0).saturating_sub(failed), failed);
    let left = ended(tree, &home, ENDING);
    let found = |left: &[u32]| format!("{} processes left: {left:?}", left.len());
    ran.note("every process has ended", if left.is_empty() { Ok(found(&left)) } else { Err(found(&left)) });
    Ok(())
}

/// Returns a number of rostest's summary, such as 4 from the line ` * TESTS: 4`. Colours may surround the line.
fn summary(text: &str, word: &str) -> Option<u64> {
    let number = |line: &str| {
        let (_, after) = line.split_once(&format!("* {word}: "))?;
        let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    text.lines().rev().find_map(number)
}

/// Waits until the processes with this `ROS_HOME` have ended, for at most `limit`. Returns those that have not, after ending
/// them.
fn ended(tree: &Tree, home: &Path, limit: Duration) -> Vec<u32> {
    let start = Instant::now();
    while !processes(home).is_empty() && start.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(50));
    }
    let left = processes(home);
    for id in &left {
        Run::new(tree, "sh -c").arg(format!("kill -KILL {id}")).quiet().run();
    }
    left
}

/// Returns the numbers of the processes whose environment has this `ROS_HOME`.
fn processes(home: &Path) -> Vec<u32> {
    let wanted = format!("ROS_HOME={}\0", home.display());
    let with = |id: &u32| {
        std::fs::read(format!("/proc/{id}/environ"))
            .is_ok_and(|bytes| memmem::find(&bytes, wanted.as_bytes()).is_some())
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_summary_is_read_with_and_without_colours() {
        let text = "\u{1b}[1m * RESULT: FAIL\u{1b}[0m\n * TESTS: 14\n\u{1b}[31m * ERRORS: 2\u{1b}[0m\n * FAILURES: 0\n";
        let found = ["TESTS", "ERRORS", "FAILURES", "RESULT"].map(|word| summary(text, word));
        assert_eq!(found, [Some(14), Some(2), Some(0), None]);
    }

    #[test]
    fn a_process_that_is_left_is_found_and_ended() {
        let tree = Tree::find().unwrap();
        let home = tree.target.join(format!("ros-home-{}", std::process::id()));
        assert!(processes(&home).is_empty());
        let mut child = Command::new("sleep").arg("60").env("ROS_HOME", &home).spawn().unwrap();
        // The system shows the environment of a new program a moment after its start.
        let start = Instant::now();
        while processes(&home).is_empty() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(ended(&tree, &home, Duration::ZERO), [child.id()]);
        assert!(!child.wait().unwrap().success());
    }
}
