//! Checks that the stand-in driver aborts a launch whose lanes wait at different places, and that the message names the
//! kernel and these places.

use elsa_oracle::standin::folder;
use std::process::{Command, Output};

/// Source of kernels whose lanes wait at different places.
const SOURCE: &str = include_str!("../../standin/diverging.cpp");

fn run(kernel: &str) -> Output {
    Command::new(folder().join("diverging")).arg(kernel).output().unwrap()
}

/// Returns the position of `call` in the format of the driver's messages. The call is in the line of `kernel` whose
/// comment contains `which`. If `which` is `second`, it is the last such call of the line, otherwise the first.
fn place(kernel: &str, call: &str, which: &str) -> String {
    let start = format!("void {kernel}(");
    let mut lines = SOURCE.lines().enumerate().skip_while(|(_, line)| !line.starts_with(&start));
    let comments = |line: &str| line.split_once(" // ").is_some_and(|(_, comment)| comment.contains(which));
    let (n, line) = lines.find(|(_, line)| comments(line)).unwrap();
    let column = if which == "second" { line.rfind(call) } else { line.find(call) };
    format!("tests/standin/diverging.cpp:{}:{} ", n + 1, column.unwrap() + 1)
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn lanes_at_different_places_end_the_launch() {
    let cases = [
        ("block_barriers", ["sync_block", "sync_block"], ["a barrier", "a barrier"]),
        ("warps_at_barriers", ["sync_block", "sync_block"], ["a barrier", "a barrier"]),
        ("block_votes", ["any_of_block", "any_of_block"], ["a vote", "a vote"]),
        ("warp_barriers", ["sync_warp", "sync_warp"], ["a barrier", "a barrier"]),
        ("ballots", ["ballot", "any_of_warp"], ["a vote", "a vote"]),
        ("shuffles", ["shuffle_xor", "shuffle_from"], ["a shuffle", "a shuffle"]),
        ("one_line", ["sync_block", "sync_block"], ["a barrier", "a barrier"]),
        ("kinds", ["sync_block", "any_of_block"], ["a barrier", "a vote"]),
    ];
    for (kernel, calls, kinds) in cases {
        let output = run(kernel);
        let text = String::from_utf8(output.stderr).unwrap().replace('\n', " ");
        assert!(!output.status.success(), "{kernel}: {text}");
        assert!(text.starts_with(&format!("stand-in driver: {kernel}: ")), "{kernel}: {text}");
        for (which, (call, kind)) in ["first", "second"].into_iter().zip(calls.into_iter().zip(kinds)) {
            let place = place(kernel, call, which);
            assert!(text.contains(&format!("{kind} at {place}")), "{kernel}: {place}: {text}");
        }
    }
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn lanes_that_do_not_come_end_the_launch() {
    let output = run("missing");
    let text = String::from_utf8(output.stderr).unwrap();
    let place = place("missing", "sync_block", "first");
    let message = format!("stand-in driver: missing: in a barrier at {place}lanes wait for others");
    assert!(!output.status.success() && text.starts_with(&message), "{text}");
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn lanes_that_meet_go_on() {
    let output = run("together");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
