//! Tests changing inputs, links, file modes and signals. Writing an output must not affect any other file, and a run
//! that ends early must leave no file behind.
#![cfg(unix)]

use crate::common::{Desk, noise, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Output};
use std::time::{Duration, SystemTime};

const SHAPE: [usize; 4] = [2, 4, 19, 16];
const INPUTS: &str = "run --q @q.npy --k @k.npy --v @v.npy";
const EARLIER: &[u8] = b"an earlier answer";

/// Creates a folder with inputs that are an hour old, an earlier output, and a pipe without a writer.
fn desk() -> Desk {
    let desk = Desk::new();
    for (name, seed) in [("q.npy", 1), ("k.npy", 2), ("v.npy", 3)] {
        desk.f32(name, &SHAPE, &noise(seed, SHAPE.iter().product()));
        age(&desk.path(name));
    }
    std::fs::write(desk.path("y.npy"), EARLIER).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, desk.path("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    desk
}

/// Backdates a file by an hour, so that any later write is visible even if the file system's clock is coarse.
fn age(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
}

fn parts(desk: &Desk) -> Vec<String> {
    desk.list().into_iter().filter(|name| name.ends_with(".part")).collect()
}

/// Starts a run and waits until it has read its inputs and created a temporary file for `out`; the run then waits for
/// the pipe.
fn waiting(desk: &Desk, first: &str, out: &str) -> Child {
    let pipe = desk.path("pipe");
    let first = format!("{first}\nexport ELSA_TEST_WAIT_BEFORE=2 ELSA_TEST_PIPE={}", pipe.display());
    let child = desk.start(&first, &format!("{INPUTS} --out @{out} --lse-out /dev/null"));
    wait_for("a temporary file", || !parts(desk).is_empty());
    child
}

/// Writes to the pipe and closes it so that the run continues, and waits until the run ends.
fn go_on(desk: &Desk, child: Child) -> Output {
    std::fs::write(desk.path("pipe"), b"").unwrap();
    child.wait_with_output().unwrap()
}

/// Requires exit status 3, one line that contains all `words`, an unchanged earlier output, and no temporary file.
fn failed(desk: &Desk, output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{:?}: {text}", output.status);
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is missing in: {text}");
    }
    assert_eq!(std::fs::read(desk.path("y.npy")).unwrap(), EARLIER);
    assert_eq!(parts(desk), [""; 0]);
}

#[test]
fn a_run_leaves_the_temporary_file_of_another_running_process() {
    let desk = desk();
    let child = waiting(&desk, "", "y.npy");
    let held = parts(&desk);
    desk.ok(&format!("{INPUTS} --out @y.npy"));
    assert_eq!(parts(&desk), held);
    let output = go_on(&desk, child);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(parts(&desk), [""; 0]);
}

#[test]
fn an_input_that_changes_during_the_run_is_noticed() {
    type Change = fn(&Desk);
    let changes: [Change; 5] = [
        |desk| File::options().write(true).open(desk.path("q.npy")).unwrap().set_len(100).unwrap(),
        |desk| File::options().write(true).open(desk.path("q.npy")).unwrap().set_len(0).unwrap(),
        |desk| File::options().append(true).open(desk.path("q.npy")).unwrap().write_all(b"more").unwrap(),
        |desk| {
            let bytes = std::fs::read(desk.path("k.npy")).unwrap();
            File::options().write(true).open(desk.path("q.npy")).unwrap().write_all(&bytes).unwrap();
        },
        |desk| std::fs::rename(desk.path("k.npy"), desk.path("q.npy")).unwrap(),
    ];
    for change in changes {
        let desk = desk();
        let child = waiting(&desk, "", "y.npy");
        change(&desk);
        failed(&desk, &go_on(&desk, child), &["--q: ", "q.npy: changed during the run", "run again"]);
    }
    let desk = desk();
    let child = waiting(&desk, "", "y.npy");
    assert!(go_on(&desk, child).status.success());
    assert_ne!(std::fs::read(desk.path("y.npy")).unwrap(), EARLIER);
}

#[test]
fn a_signal_leaves_no_temporary_file() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let desk = desk();
        let child = waiting(&desk, "ulimit -c 0", "y.npy");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(signal.as_raw()), "{output:?}");
        assert_eq!(desk.list(), ["k.npy", "pipe", "q.npy", "v.npy", "y.npy"]);
        assert_eq!(std::fs::read(desk.path("y.npy")).unwrap(), EARLIER);
    }
}

/// Checks that a signal stays ignored if the caller ignores it, as `nohup` does.
#[test]
#[cfg_attr(target_arch = "aarch64", ignore = "the emulator does not hand down what its caller ignores")]
fn a_signal_that_the_caller_ignores_stays_ignored() {
    let desk = desk();
    let child = waiting(&desk, "trap '' HUP", "y.npy");
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let output = go_on(&desk, child);
    assert!(output.status.success(), "{output:?}");
    assert_ne!(std::fs::read(desk.path("y.npy")).unwrap(), EARLIER);
}

#[test]
#[cfg_attr(target_arch = "aarch64", ignore = "the limit strikes the emulator")]
fn a_file_beyond_the_limit_of_the_process_is_an_error() {
    let desk = desk();
    let line = format!("{INPUTS} --out @y.npy");
    let output = desk.start("ulimit -f 2", &line).wait_with_output().unwrap();
    failed(&desk, &output, &["--out: ", "y.npy: writing failed: File too large"]);
    let output = desk.start("ulimit -f 2000", &line).wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_replaced_file_keeps_mode_and_owner() {
    let desk = desk();
    let path = desk.path("y.npy");
    // Gives the file to another user, if this process has the permission.
    let _ = std::os::unix::fs::chown(&path, Some(12_345), Some(23_456));
    let kept = |path: &Path| {
        let metadata = std::fs::metadata(path).unwrap();
        (metadata.mode(), metadata.uid(), metadata.gid())
    };
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o660)).unwrap();
    let before = kept(&path);
    let child = waiting(&desk, "", "y.npy");
    // The temporary file has the same mode and owner, so users who may not read the output cannot read it either.
    let part = desk.path(&parts(&desk)[0]);
    wait_for("mode and owner of the temporary file", || kept(&part) == before);
    assert!(go_on(&desk, child).status.success());
    assert_ne!(std::fs::read(&path).unwrap(), EARLIER);
    assert_eq!(kept(&path), before);
}

#[test]
fn a_link_to_a_file_that_is_not_there_yet_is_followed() {
    let desk = desk();
    std::fs::create_dir(desk.path("results")).unwrap();
    symlink("results/target.npy", desk.path("near.npy")).unwrap();
    symlink(desk.path("near.npy"), desk.path("far.npy")).unwrap();
    desk.ok(&format!("{INPUTS} --out @far.npy"));
    for link in ["near.npy", "far.npy"] {
        assert!(desk.path(link).symlink_metadata().unwrap().is_symlink(), "{link}");
    }
    assert!(desk.path("results/target.npy").symlink_metadata().unwrap().is_file());
    desk.ok(&format!("{INPUTS} --out @y.npy"));
    assert_eq!(desk.read("results/target.npy"), desk.read("y.npy"));

    symlink("none/target.npy", desk.path("lost.npy")).unwrap();
    symlink("loop.npy", desk.path("loop.npy")).unwrap();
    for link in ["lost.npy", "loop.npy"] {
        let output = desk.call(&format!("{INPUTS} --out @{link}"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(link) && text.contains("cannot be written"), "{text}");
        assert!(desk.path(link).symlink_metadata().unwrap().is_symlink());
    }
    assert_eq!(parts(&desk), [""; 0]);
}

/// Checks the observable part of a sync: the folder is opened after the file has been renamed.
#[cfg(target_os = "linux")]
#[test]
fn the_folder_is_synced_after_the_rename() {
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    let desk = desk();
    let watch = init(CreateFlags::NONBLOCK).unwrap();
    add_watch(&watch, desk.0.path(), WatchFlags::OPEN | WatchFlags::MOVED_TO).unwrap();
    desk.ok(&format!("{INPUTS} --out @y.npy"));
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&watch, &mut buffer);
    let mut events = Vec::new();
    while let Ok(event) = reader.next() {
        events.push((event.events(), event.file_name().is_some_and(|name| name == c"y.npy")));
    }
    let renamed =
        events.iter().position(|(what, target)| what.contains(ReadFlags::MOVED_TO) && *target).unwrap();
    let opened = |(what, _): &(ReadFlags, bool)| what.contains(ReadFlags::OPEN | ReadFlags::ISDIR);
    assert!(events[renamed..].iter().any(opened), "{events:?}");
}

/// Content of a `.safetensors` file: the type, shape and bytes of each tensor by name, and the metadata of the file.
type Whole = (HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>, Option<HashMap<String, String>>);

/// Requires that the file contains exactly the given tensors and metadata.
fn holds(path: &Path, (tensors, text): &Whole) {
    let (found, found_text) = whole(path);
    let names = |x: &HashMap<String, _>| x.keys().cloned().collect::<BTreeSet<String>>();
    assert_eq!(names(&found), names(tensors));
    for (name, tensor) in tensors {
        assert!(found[name] == *tensor, "{name}: {:?} {:?}", found[name].0, found[name].1);
    }
    assert_eq!(found_text, *text);
}

fn whole(path: &Path) -> Whole {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.iter().map(|(name, view)| {
        assert_eq!(
            (view.data().as_ptr() as usize - bytes.as_ptr() as usize) * 8 % view.dtype().bitsize(),
            0,
            "{name}"
        );
        (name.to_string(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    });
    (tensors.collect(), SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone())
}

#[test]
fn outputs_join_the_tensors_of_a_file() {
    let desk = desk();
    desk.ok(&format!("{INPUTS} --out @y.npy --lse-out @lse.npy"));
    let (y, lse) = (desk.read("y.npy").1, desk.read("lse.npy").1);
    let of = |x: &[f32], shape: &[usize]| {
        (Dtype::F32, shape.to_vec(), bytemuck::cast_slice::<f32, u8>(x).to_vec())
    };
    let (y, lse) = (of(&y, &SHAPE), of(&lse, &SHAPE[..3]));
    let path = desk.path("r.safetensors");

    // One call adds two outputs, a second call adds one, and a third call replaces one.
    desk.ok(&format!("{INPUTS} --out @r.safetensors#a --lse-out @r.safetensors#b"));
    holds(&path, &(HashMap::from([("a".into(), y.clone()), ("b".into(), lse.clone())]), None));
    desk.ok(&format!("{INPUTS} --out @z.npy --lse-out @r.safetensors#c"));
    desk.ok(&format!("{INPUTS} --out @r.safetensors#b"));
    let all = [("a", &y), ("b", &y), ("c", &lse)].map(|(name, x)| (name.to_string(), x.clone()));
    holds(&path, &(HashMap::from(all), None));

    // The file has a tensor of a type that no flag accepts, a tensor without elements, and text in its metadata.
    let text = HashMap::from([("format".to_string(), "pt".to_string()), ("π".into(), "\"\n".into())]);
    let odd = TensorView::new(Dtype::F8_E5M2, vec![3], &[1, 2, 3]).unwrap();
    let empty = TensorView::new(Dtype::I16, vec![0, 5], &[]).unwrap();
    let q = std::fs::read(desk.path("q.npy")).unwrap();
    let q = &q[q.len() - y.2.len()..];
    let tensors =
        [("odd", odd), ("empty", empty), ("q", TensorView::new(Dtype::F32, SHAPE.to_vec(), q).unwrap())];
    std::fs::write(&path, safetensors::serialize(tensors, Some(text)).unwrap()).unwrap();
    let (mut tensors, text) = whole(&path);
    desk.ok("run --q @r.safetensors#q --k @k.npy --v @v.npy --out @r.safetensors#y");
    tensors.insert("y".into(), y.clone());
    holds(&path, &(tensors.clone(), text.clone()));
    // An output may replace an input if --force is given.
    desk.ok("run --q @r.safetensors#q --k @k.npy --v @v.npy --out @r.safetensors#q --force");
    tensors.insert("q".into(), y.clone());
    holds(&path, &(tensors, text));

    // An empty file has no tensors to keep.
    std::fs::write(&path, b"").unwrap();
    desk.ok(&format!("{INPUTS} --out @r.safetensors#a"));
    holds(&path, &(HashMap::from([("a".into(), y)]), None));
}

#[test]
fn a_file_that_changes_while_its_tensors_are_kept_is_left_alone() {
    let desk = desk();
    desk.ok(&format!("{INPUTS} --out @r.safetensors#a"));
    let path = desk.path("r.safetensors");
    age(&path);
    let child = waiting(&desk, "", "r.safetensors#b");
    // Another process adds a tensor, which would be lost if the run replaced the file.
    desk.ok(&format!("{INPUTS} --out @r.safetensors#c"));
    let before = std::fs::read(&path).unwrap();
    let output = go_on(&desk, child);
    failed(&desk, &output, &["--out: ", "r.safetensors: changed during the run"]);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn inputs_of_a_run_are_read_while_others_hold_them() {
    let desk = desk();
    let reader = File::open(desk.path("q.npy")).unwrap();
    reader.lock_shared().unwrap();
    desk.ok(&format!("{INPUTS} --out @y.npy"));
    reader.unlock().unwrap();
    reader.lock().unwrap();
    let output = desk.call(&format!("{INPUTS} --out @y.npy"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--q") && text.contains("locked by another process"), "{text}");
    let mut byte = [0];
    (&reader).read_exact(&mut byte).unwrap();
}

/// Checks that integers in a mask act as booleans, and that finite f64 numbers below the range of f32 act as the lowest
/// f32. A run with such a mask must yield the same bits as a run with the equivalent boolean mask, both in memory and
/// streamed.
#[test]
fn masks_of_integers_and_of_f64_are_those_of_booleans() {
    let desk = Desk::new();
    for name in ["q.npy", "k.npy", "v.npy"] {
        desk.f32(name, &[2, 3, 45, 8], &noise(name.len() as u64, 2 * 3 * 45 * 8));
    }
    let bits: Vec<bool> = (0..90).map(|n| n % 7 != 3 && n != 80).collect();
    let shape = [2, 1, 1, 45];
    let run = |mask: &str| {
        desk.ok(&format!("run --q @q.npy --k @k.npy --v @v.npy --mask @{mask} --out @y.npy"));
        desk.read("y.npy")
    };
    desk.bool("bool.npy", &shape, &bits);
    desk.bool("all.npy", &shape, &[true; 90]);
    let wanted = run("bool.npy");
    assert_ne!(wanted, run("all.npy"));
    let bytes = |of: &dyn Fn(bool) -> Vec<u8>| bits.iter().flat_map(|x| of(*x)).collect::<Vec<u8>>();
    for (file, dtype, bytes) in [
        ("i64.npy", "<i8", bytes(&|x| (i64::from(x) << 32).to_le_bytes().into())),
        ("i32.npy", "<i4", bytes(&|x| (i32::from(x) * -256).to_le_bytes().into())),
        ("u8.npy", "|u1", bytes(&|x| vec![u8::from(x) * 2])),
        ("f64.npy", "<f8", bytes(&|x| if x { 0.0 } else { f64::MIN }.to_le_bytes().into())),
    ] {
        desk.npy(file, dtype, &shape, &bytes);
        for budget in ["", " --host-budget 64MiB"] {
            assert_eq!(run(&format!("{file}{budget}")), wanted, "{file}{budget}");
        }
    }
}
