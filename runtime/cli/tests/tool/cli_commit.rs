//! Kills the tool before every change that it makes to the file system. The next run must complete the work of the
//! killed run, and must leave no extra file behind.
#![cfg(target_os = "linux")]

use crate::common::{Desk, elsa_with, emulated, noise, said};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

const BEFORE: &str = "ELSA_TEST_ABORT_BEFORE";

fn desk() -> Desk {
    let desk = Desk::new();
    desk.f32("q.npy", &[1, 2, 40, 8], &noise(1, 640));
    desk.f32("k.npy", &[1, 2, 600, 8], &noise(2, 9600));
    desk.f32("v.npy", &[1, 2, 600, 8], &noise(3, 9600));
    desk
}

const INPUTS: &str = "run --q @q.npy --k @k.npy --v @v.npy --threads 1";

/// Lists the temporary files, partial files and journals.
fn rest(desk: &Desk) -> Vec<String> {
    desk.list().into_iter().filter(|name| name.contains("elsa")).collect()
}

/// Kills a run with the outputs `outputs` before each change that the run makes to the file system. If `twice` is set,
/// also kills the run that follows each killed run. Requires that the run after the last kill completes the outputs.
/// Returns the number of kills.
fn recovers(outputs: &[(&str, &str)], first: Option<&[u8]>, twice: bool) -> usize {
    let desk = desk();
    let words = |prefix: &str| {
        let flags = outputs.iter().map(|(flag, name)| format!(" {flag} @{prefix}{name}"));
        desk.words(&format!("{INPUTS}{}", flags.collect::<String>()))
    };
    let file = |name: &str| name.split('#').next().unwrap_or_default().to_owned();
    let put = |prefix: &str| {
        for (_, name) in outputs {
            let path = desk.path(&format!("{prefix}{}", file(name)));
            let _ = fs::remove_file(&path);
            if let Some(first) = first {
                fs::write(&path, first).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            }
        }
    };
    put("want-");
    let within = |line: Vec<String>, more: &[&str]| -> Vec<String> {
        let budget = ["--host-budget", "256MiB"].iter().chain(more);
        line.into_iter().chain(budget.map(|word| (*word).to_owned())).collect()
    };
    assert!(elsa_with(&within(words("want-"), &[]), &[]).status.success());
    let line = within(words(""), &["--resume"]);
    for at in 1.. {
        put("");
        let killed = elsa_with(&line, &[(BEFORE, &at.to_string())]);
        let ended = killed.status.success();
        assert!(ended || killed.status.signal().is_some(), "{at}: {}", said(&killed));
        if !ended {
            if twice {
                elsa_with(&line, &[(BEFORE, &(at % 7 + 1).to_string())]);
            }
            let output = elsa_with(&line, &[]);
            assert!(output.status.success(), "{outputs:?}, killed before {at}: {}", said(&output));
        }
        for (_, name) in outputs {
            let name = file(name);
            let path = desk.path(&name);
            assert!(
                fs::read(&path).unwrap() == fs::read(desk.path(&format!("want-{name}"))).unwrap(),
                "{at} {name}"
            );
            if first.is_some() {
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640, "{at} {name}");
            }
        }
        assert!(rest(&desk).is_empty(), "{outputs:?}, killed before {at}: {:?}", rest(&desk));
        if ended {
            return at - 1;
        }
    }
    unreachable!()
}

#[test]
fn a_run_recovers_from_a_kill_at_every_step() {
    if emulated() {
        return;
    }
    let npy: &[(&str, &str)] = &[("--out", "y.npy"), ("--lse-out", "lse.npy")];
    assert!(recovers(npy, None, false) > 20);
    assert!(recovers(npy, Some(b"old"), true) > 20);
    assert!(recovers(&[("--out", "y.npy"), ("--state-out", "s.npz")], None, false) > 25);
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F64, vec![3], &[7; 24]).unwrap();
    let old = safetensors::serialize([("old", view)], None).unwrap();
    assert!(
        recovers(&[("--out", "a.safetensors#y"), ("--lse-out", "a.safetensors#lse")], Some(&old), false) > 15
    );
    assert!(recovers(&[("--out", "a.safetensors#y"), ("--lse-out", "lse.npy")], Some(&old), true) > 20);
}

/// Checks a run after an earlier run that was killed between the renames of two outputs. If the output that was already
/// renamed has been removed or replaced, the run must start from the beginning.
#[test]
fn a_committed_output_that_is_gone_is_made_again() {
    if emulated() {
        return;
    }
    let desk = desk();
    let line = desk.words(&format!("{INPUTS} --out @y.npy --lse-out @lse.npy --host-budget 256MiB --resume"));
    assert!(elsa_with(&line, &[]).status.success());
    let want = ["y.npy", "lse.npy"].map(|name| fs::read(desk.path(name)).unwrap());
    // Removes all outputs, and kills a new run before its change with index `at`.
    let killed = |at: usize| {
        for name in desk.list().into_iter().filter(|name| !["q.npy", "k.npy", "v.npy"].contains(&&name[..])) {
            fs::remove_file(desk.path(&name)).unwrap();
        }
        assert!(
            elsa_with(&line, &[(BEFORE, &at.to_string())]).status.signal().is_some(),
            "{at}: it is not killed"
        );
        [desk.path("y.npy").exists(), desk.path("lse.npy").exists()]
    };
    let between = (1..).find(|at| killed(*at) == [true, false]).unwrap();
    let changes: [&dyn Fn(); 2] = [&|| fs::remove_file(desk.path("y.npy")).unwrap(), &|| {
        fs::write(desk.path("y.npy"), b"other").unwrap()
    }];
    for change in changes {
        assert_eq!(killed(between), [true, false]);
        change();
        let output = elsa_with(&line, &[]);
        assert!(output.status.success() && said(&output).contains("begins anew"), "{}", said(&output));
        assert_eq!(["y.npy", "lse.npy"].map(|name| fs::read(desk.path(name)).unwrap()), want);
        assert!(rest(&desk).is_empty());
    }
}

#[test]
fn what_killed_processes_leave_is_removed_and_what_living_ones_have_is_not() {
    if emulated() {
        return;
    }
    let desk = desk();
    let line = desk.words(&format!("{INPUTS} --out @y.npy"));
    let other = desk.words(&format!("{INPUTS} --out @other.npy"));
    assert!(elsa_with(&line, &[(BEFORE, "2")]).status.signal().is_some());
    assert!(elsa_with(&other, &[(BEFORE, "2")]).status.signal().is_some());
    let orphans = rest(&desk);
    assert_eq!(orphans.len(), 2, "{orphans:?}");
    // A living process has a lock on its temporary file, as this process has now.
    let held: Vec<File> = orphans.iter().map(|name| File::open(desk.path(name)).unwrap()).collect();
    held.iter().for_each(|file| file.lock_shared().unwrap());
    assert!(elsa_with(&line, &[]).status.success());
    assert_eq!(rest(&desk), orphans);
    drop(held);
    assert!(elsa_with(&line, &[]).status.success());
    assert_eq!(rest(&desk).len(), 1, "that of another output is left");
    assert!(elsa_with(&other, &[]).status.success());
    assert!(rest(&desk).is_empty());
    // A link with the name of a temporary file does not belong to the tool and is not removed.
    assert!(elsa_with(&line, &[(BEFORE, "2")]).status.signal().is_some());
    let name = rest(&desk).remove(0);
    fs::remove_file(desk.path(&name)).unwrap();
    std::os::unix::fs::symlink(desk.path("q.npy"), desk.path(&name)).unwrap();
    assert!(elsa_with(&line, &[]).status.success());
    assert!(desk.path(&name).symlink_metadata().unwrap().is_symlink() && desk.path("q.npy").exists());
}

/// Checks that partial files and journals are never written through a link, and never replace an input.
#[test]
fn what_lies_in_the_place_of_a_part_is_not_written_through() {
    let desk = desk();
    let line = desk.words(&format!("{INPUTS} --out @y.npy --host-budget 256MiB --resume"));
    let q = fs::read(desk.path("q.npy")).unwrap();
    for name in ["y.npy.elsa-part", "y.npy.elsa-journal"] {
        let path = desk.path(name);
        let link: [&dyn Fn(); 2] =
            [&|| std::os::unix::fs::symlink(desk.path("q.npy"), &path).unwrap(), &|| {
                fs::hard_link(desk.path("q.npy"), &path).unwrap()
            }];
        for make in link {
            make();
            let output = elsa_with(&line, &[]);
            assert!(
                output.status.code() == Some(2) && said(&output).lines().count() == 1,
                "{}",
                said(&output)
            );
            assert!(fs::read(desk.path("q.npy")).unwrap() == q && !desk.path("y.npy").exists());
            fs::remove_file(&path).unwrap();
        }
    }
    assert!(elsa_with(&line, &[]).status.success());
}
