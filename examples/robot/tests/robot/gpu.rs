//! Tests the program with a GPU that is missing, or that fails while the loop runs.

use crate::common::{self, Desk, account, frames};
use std::process::Output;

/// Runs the program without a GPU driver: the program finds neither an NVIDIA driver nor the stand-in of
/// `tests/standin`.
fn without_gpu(desk: &Desk, line: &str) -> Output {
    let mut command = desk.robot(line);
    command.env("CUDA_VISIBLE_DEVICES", "").env("ELSA_STANDIN_DEVICE", "none").output().unwrap()
}

#[test]
fn a_gpu_that_is_missing_has_the_cpu_take_its_place_or_is_an_error() {
    let desk = Desk::new(6);
    let line = "--images @images --rate 200 --json --backend cuda";
    let output = without_gpu(&desk, line);
    let (answers, summary) = account(&output);
    common::check(&desk, &answers, 6, |frame| frame as usize);
    assert!(answers.iter().all(|answer| answer["fallback"] == true));
    assert_eq!((&summary["fallbacks"], &summary["copied_bytes"]), (&6.into(), &0.into()));
    assert_ne!(summary["backend"], "cuda");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains("the CPU computes: "), "{told}");

    let output = without_gpu(&desk, &format!("{line} --fallback fail"));
    assert_eq!(output.status.code(), Some(3));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.starts_with("elsa-robot: backend: cuda cannot be used: "), "{told}");
    assert!(output.stdout.is_empty());
}

/// Checks that an integrated GPU uses the tensors in place, and that tensors are copied to a discrete GPU.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn an_integrated_gpu_copies_nothing() {
    let desk = Desk::new(4);
    for (device, in_place) in [("", true), ("discrete", false)] {
        let mut command = desk.robot("--images @images --rate 1000 --json --backend cuda");
        let output = command.env("ELSA_STANDIN_DEVICE", device).output().unwrap();
        let (answers, summary) = account(&output);
        common::check(&desk, &answers, 4, |frame| frame as usize);
        assert_eq!(summary["backend"], "cuda");
        assert_eq!(summary["copied_bytes"] == 0, in_place, "{summary}");
    }
}

/// Returns the number of kernel launches per classification. The launches are counted in the log of the stand-in
/// driver, for `frames` frames and the warm-up.
fn launches(desk: &Desk, frames: u64) -> u64 {
    let log = desk.path("calls");
    let line = format!("--images @images --repeat --frames {frames} --rate 1000 --json --backend cuda");
    let output = desk.robot(&line).env("ELSA_STANDIN_LOG", &log).output().unwrap();
    let (_, summary) = account(&output);
    assert_eq!((&summary["backend"], &summary["fallbacks"]), (&"cuda".into(), &0.into()));
    let calls = std::fs::read_to_string(log).unwrap();
    let count = calls.lines().filter(|line| line.contains("cuLaunchKernel")).count() as u64;
    assert!(count > 0 && count.is_multiple_of(frames + 1), "{count}");
    count / (frames + 1)
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn a_gpu_that_dies_in_the_middle_costs_no_frame() {
    let desk = Desk::new(20);
    let count = frames();
    let dies = count / 2;
    let first = launches(&desk, 10) * (dies + 1) + 1;
    // Error 719 means that the launch failed and that the context is lost. A device that recovers is used again; after
    // a second failure the CPU computes.
    for (fault, recovers) in [(format!("{first}:719"), true), (format!("{first}+:719"), false)] {
        let line = format!("--images @images --repeat --frames {count} --rate 100 --json --backend cuda");
        let mut command = desk.robot(&line);
        let output = command.env("ELSA_STANDIN_FAIL", format!("cuLaunchKernel:{fault}")).output().unwrap();
        let (answers, summary) = account(&output);
        println!("{summary}");
        common::check(&desk, &answers, count, |frame| frame as usize);
        let fallbacks: Vec<u64> = answers
            .iter()
            .filter(|answer| answer["fallback"] == true)
            .map(|answer| answer["frame"].as_u64().unwrap())
            .collect();
        let wanted: Vec<u64> = if recovers { vec![dies] } else { (dies..count).collect() };
        assert_eq!(fallbacks, wanted);
        assert_eq!(summary["fallbacks"], wanted.len());
        assert_eq!(summary["backend"] == "cuda", recovers);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("cuLaunchKernel") && told.contains("719"), "{told}");
        assert!(told.lines().count() <= 3, "told more than once: {told}");

        let mut command = desk.robot(&format!("{line} --fallback fail"));
        let output = command.env("ELSA_STANDIN_FAIL", format!("cuLaunchKernel:{fault}")).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        let (answers, summary) = common::split(&output);
        common::check(&desk, &answers, dies, |frame| frame as usize);
        assert_eq!((&summary["frames"], &summary["ended"]), (&dies.into(), &"failure".into()));
    }
}
