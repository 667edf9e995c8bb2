//! Tests the complete program: rate, answers, sources, serial port, signals, invalid requests.

use crate::common::{self, Desk, account, check, emulated, frames, lines, yuyv};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::OpenptFlags;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn start(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Two threads that keep two cores busy until they are dropped.
struct Load(Arc<AtomicBool>, Vec<std::thread::JoinHandle<u64>>);

impl Load {
    fn new() -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let busy = || {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut rounds = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    rounds = std::hint::black_box(rounds + 1);
                }
                rounds
            })
        };
        let threads = vec![busy(), busy()];
        Load(stop, threads)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        for thread in self.1.drain(..) {
            assert!(thread.join().unwrap() > 0);
        }
    }
}

#[test]
fn every_frame_is_answered_at_100_hz_under_load() {
    let (desk, count, rate) = (Desk::new(20), frames(), 100.0);
    let load = Load::new();
    let line = format!("--images @images --repeat --frames {count} --rate {rate} --json");
    let (answers, summary) = account(&desk.robot(&line).output().unwrap());
    drop(load);
    check(&desk, &answers, count, |frame| frame as usize);
    println!("{summary}");
    assert_eq!((&summary["frames"], &summary["ended"]), (&count.into(), &"frames".into()));
    for zero in ["dropped_lines", "broken_frames", "idle_periods", "fallbacks", "replaced_frames"] {
        assert_eq!(summary[zero], 0, "{zero}");
    }
    // An answer is late exactly if it took longer than a period. The clock counts nanoseconds, so an answer whose
    // latency in microseconds is exactly one period may be late or not.
    let period = 1e6 / rate;
    let us = |answer: &Value| answer["latency_us"].as_u64().unwrap();
    for answer in &answers {
        let late = us(answer) as f64 >= period;
        assert!(answer["late"] == late || us(answer) as f64 == period, "{answer}");
    }
    let late = answers.iter().filter(|answer| answer["late"] == true).count() as u64;
    assert_eq!(summary["deadline_misses"], late);
    // The expected percentiles are computed from these latencies; the histogram keeps three digits.
    let mut sorted: Vec<u64> = answers.iter().map(us).collect();
    sorted.sort_unstable();
    for (name, q) in [("p50_us", 0.5), ("p99_us", 0.99), ("max_us", 1.0)] {
        let wanted = sorted[((q * count as f64).ceil() as usize).max(1) - 1] as f64;
        let found = summary[name].as_f64().unwrap();
        assert!((found - wanted).abs() <= 0.002 * wanted + 1.0, "{name}: {found} {wanted}");
    }
    // The loop kept to the grid: the periods, answered or skipped, add up to the time that passed.
    let periods = count + summary["skipped_periods"].as_u64().unwrap();
    let seconds = summary["seconds"].as_f64().unwrap();
    let last = us(&answers[answers.len() - 1]) as f64 * 1e-6;
    let expected = (periods - 1) as f64 / rate + last;
    assert!((seconds - expected).abs() < 1.5 / rate, "{seconds} s, {expected} expected");
}

#[test]
fn frames_come_through_a_pipe_in_any_number() {
    let desk = Desk::new(5);
    let count = 40u64;
    let mut child =
        start(desk.robot("--pipe - --size 64x64 --format yuyv --rate 500 --json --priority 1 --cpu 0"));
    let mut stdin = child.stdin.take().unwrap();
    let pictures = desk.pictures.clone();
    let writer = std::thread::spawn(move || {
        for i in 0..count {
            stdin.write_all(&yuyv(&pictures[i as usize % 5], 8)).unwrap();
        }
        // An incomplete frame, and then the end of the input.
        stdin.write_all(&[1, 2, 3]).unwrap();
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let (answers, summary) = account(&output);
    check(&desk, &answers, count, |frame| frame as usize);
    assert_eq!((&summary["ended"], &summary["broken_frames"]), (&"source".into(), &1.into()));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("frame 40 is skipped: frame: 3 bytes; allowed: 8192"), "{text}");
}

#[test]
fn a_named_pipe_may_find_its_writer_late_and_gives_the_newest() {
    let desk = Desk::new(2);
    let path = desk.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    let child = start(desk.robot("--pipe @fifo --size 8x8 --format grey --rate 20 --newest --json"));
    std::thread::sleep(Duration::from_millis(300));
    // Opening waits until the robot has opened the pipe, however long the robot takes to start.
    let mut fifo = File::options().write(true).open(&path).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..200 {
        fifo.write_all(&desk.pictures[0]).unwrap();
        fifo.write_all(&desk.pictures[1]).unwrap();
    }
    drop(fifo);
    let (answers, summary) = account(&child.wait_with_output().unwrap());
    let number = |name: &str| summary[name].as_u64().unwrap();
    assert_eq!(number("frames") + number("replaced_frames"), 400);
    assert!(number("replaced_frames") > 0 && number("idle_periods") > 0, "{summary}");
    let last = answers.last().unwrap();
    assert!(desk.is_right(1, last["class"].as_u64().unwrap(), last["score"].as_f64().unwrap()));
}

#[test]
fn a_broken_picture_is_skipped_counted_and_told() {
    let desk = Desk::new(3);
    std::fs::write(desk.path("images/001.png"), b"\x89PNG\r\n\x1a\nno more").unwrap();
    let output = desk.robot("--images @images --rate 200 --json").output().unwrap();
    let (answers, summary) = account(&output);
    let frames: Vec<u64> = answers.iter().map(|answer| answer["frame"].as_u64().unwrap()).collect();
    assert_eq!(frames, [0, 2]);
    for (answer, picture) in answers.iter().zip([0, 2]) {
        let (class, score) = (answer["class"].as_u64().unwrap(), answer["score"].as_f64().unwrap());
        assert!(desk.is_right(picture, class, score), "{answer}");
    }
    assert_eq!((&summary["broken_frames"], &summary["frames"]), (&1.into(), &2.into()));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("frame 1 is skipped: 001.png: "), "{text}");
}

/// Opens a pseudo-terminal. Returns the file descriptor of its controlling end and the path of the terminal device at
/// its other end.
fn pty() -> (OwnedFd, String) {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    rustix::pty::grantpt(&ours).unwrap();
    rustix::pty::unlockpt(&ours).unwrap();
    let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    (ours, name)
}

/// Returns `true` if the program runs in an emulator, which cannot set up a terminal. In that case, also checks that
/// the program rejects the port with a message.
fn refused_by_an_emulator(desk: &Desk, name: &str) -> bool {
    if !emulated() {
        return false;
    }
    let output = desk.robot(&format!("--images @images --serial {name}")).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(&format!("serial: {name}: Function not implemented; allowed: ")), "{message}");
    true
}

#[test]
fn lines_leave_through_a_serial_port() {
    let desk = Desk::new(10);
    let (ours, name) = pty();
    if refused_by_an_emulator(&desk, &name) {
        return;
    }
    // This end is kept open, so that the lines stay readable after the program has ended.
    let theirs = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let line = format!("--images @images --rate 100 --json --serial {name} --baud 115200");
    let child = start(desk.robot(&line));
    let terminal = File::from(ours.try_clone().unwrap());
    let reader = std::thread::spawn(move || {
        let mut lines = BufReader::new(terminal).lines();
        (0..10).map(|_| lines.next().unwrap().unwrap()).collect::<Vec<_>>()
    });
    let output = child.wait_with_output().unwrap();
    let (none, summary) = account(&output);
    assert!(none.is_empty(), "{none:?}");
    assert_eq!((&summary["frames"], &summary["dropped_lines"]), (&10.into(), &0.into()));
    // The port was set up: no echo, no translation of line ends.
    let modes = rustix::termios::tcgetattr(&theirs).unwrap();
    let echo = rustix::termios::LocalModes::ECHO | rustix::termios::LocalModes::ICANON;
    assert!(!modes.local_modes.intersects(echo));
    assert!(!modes.output_modes.contains(rustix::termios::OutputModes::OPOST));
    let text = reader.join().unwrap().join("\n");
    check(&desk, &lines(text.as_bytes()), 10, |frame| frame as usize);
}

#[test]
fn a_serial_port_that_nobody_reads_holds_no_frame_up() {
    let desk = Desk::new(10);
    let (_ours, name) = pty();
    if refused_by_an_emulator(&desk, &name) {
        return;
    }
    let count = 700;
    // A terminal buffers a few thousand bytes, and the queue 256 lines.
    let line = format!("--images @images --repeat --frames {count} --rate 500 --json --serial {name}");
    let (_, summary) = account(&desk.robot(&line).output().unwrap());
    assert_eq!(summary["frames"], count);
    let dropped = summary["dropped_lines"].as_u64().unwrap();
    assert!(dropped > 0 && dropped <= count, "{summary}");
}

#[test]
fn a_serial_port_that_is_unplugged_ends_the_loop_with_the_summary() {
    let desk = Desk::new(4);
    let (ours, name) = pty();
    if refused_by_an_emulator(&desk, &name) {
        return;
    }
    let child =
        start(desk.robot(&format!("--images @images --repeat --frames 2000 --rate 100 --serial {name}")));
    let mut lines = BufReader::new(File::from(ours)).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("frame 0 class "));
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.starts_with("elsa-robot: serial: writing failed: "), "{told}");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("ended: a failure\n"));
}

#[test]
fn sigterm_and_ctrl_c_end_the_loop_with_the_summary() {
    let desk = Desk::new(4);
    for signal in [Signal::TERM, Signal::INT] {
        let mut child = start(desk.robot("--images @images --repeat --rate 50"));
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        for frame in 0..10 {
            line.clear();
            out.read_line(&mut line).unwrap();
            assert!(
                line.starts_with(&format!("frame {frame} class {} score ", desk.wanted[frame % 4].0)),
                "{line}"
            );
        }
        kill_process(pid(&child), signal).unwrap();
        let asked = Instant::now();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(asked.elapsed() < Duration::from_secs(10));
        assert!(rest.contains("deadline_misses ") && rest.contains("latency_us p50 "), "{rest}");
        assert!(rest.ends_with("ended: a signal\n"), "{rest}");
    }
}

#[test]
fn a_signal_that_repeats_another_at_once_changes_nothing() {
    let desk = Desk::new(4);
    for _ in 0..8 {
        let mut child = start(desk.robot("--images @images --repeat --rate 50"));
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut String::new()).unwrap();
        // The signals are different, because the system keeps only one pending signal of each kind.
        kill_process(pid(&child), Signal::TERM).unwrap();
        kill_process(pid(&child), Signal::INT).unwrap();
        std::thread::sleep(Duration::from_micros(300));
        let _ = kill_process(pid(&child), Signal::TERM);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success() && rest.ends_with("ended: a signal\n"), "{status} {rest}");
    }
}

/// Waits until a pipe contains no room for another line: its contents stay the same for a second.
fn wait_until_full(pipe: &impl AsFd) {
    let (mut last, mut since, started) = (0, Instant::now(), Instant::now());
    while last < 1 << 15 || since.elapsed() < Duration::from_secs(1) {
        assert!(started.elapsed() < Duration::from_secs(300), "{last} bytes");
        std::thread::sleep(Duration::from_millis(50));
        let bytes = rustix::io::ioctl_fionread(pipe).unwrap();
        if bytes != last {
            (last, since) = (bytes, Instant::now());
        }
    }
}

#[test]
fn a_later_signal_ends_a_loop_that_hangs() {
    let desk = Desk::new(4);
    // Nobody reads the program's output, so the loop hangs when the pipe is full.
    let mut child = start(desk.robot("--images @images --repeat --rate 1000 --frames 3000"));
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    wait_until_full(out.get_ref());
    assert!(child.try_wait().unwrap().is_none());
    kill_process(pid(&child), Signal::TERM).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(child.try_wait().unwrap().is_none());
    kill_process(pid(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn a_signal_ends_a_loop_that_waits_for_its_first_frame_or_for_a_long_period() {
    let desk = Desk::new(4);
    rustix::fs::mkfifoat(rustix::fs::CWD, desk.path("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    for (line, frames) in
        [("--pipe @fifo", "frames 0 "), ("--images @images --repeat --rate 0.1", "frames 1 ")]
    {
        let child = start(desk.robot(line));
        std::thread::sleep(Duration::from_millis(if emulated() { 3000 } else { 500 }));
        kill_process(pid(&child), Signal::TERM).unwrap();
        let asked = Instant::now();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && asked.elapsed() < Duration::from_secs(5));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(frames) && text.contains("ended: a signal"), "{text}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let desk = Desk::new(4);
    let mut child = start(desk.robot("--images @images --repeat --rate 200"));
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_silent_pipe_is_an_error_when_patience_ends() {
    let desk = Desk::new(4);
    let mut child = start(desk.robot("--pipe - --rate 50 --patience 0.2 --size 8x8"));
    // The input is kept open, and nothing is written to it.
    let stdin = child.stdin.take().unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "elsa-robot: frames: none for 0.2 s\n");
    let summary = String::from_utf8_lossy(&output.stdout);
    assert!(summary.starts_with("frames 0 ") && summary.ends_with("ended: a failure\n"), "{summary}");
}

#[test]
fn real_time_is_granted_or_the_refusal_is_told_and_the_loop_goes_on() {
    let desk = Desk::new(2);
    let line = "--images @images --repeat --rate 20 --priority 7 --cpu 0 --lock-memory";
    let mut child = start(desk.robot(line));
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    kill_process(pid(&child), Signal::TERM).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && rest.contains("ended: a signal"), "{output:?} {rest}");
    let warnings = String::from_utf8_lossy(&output.stderr);
    // Fields 40 and 41 of proc(5): real-time priority and policy. The name in brackets may contain spaces.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let (priority, policy) = (fields[37], fields[38]);
    if warnings.contains("priority: 7: ") {
        assert_eq!((priority, policy), ("0", "0"));
    } else {
        assert_eq!((priority, policy), ("7", "1"), "{warnings}");
    }
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    assert_eq!(field("Cpus_allowed_list:"), "0");
    let locked = field("VmLck:").trim_end_matches(" kB").trim();
    assert_eq!(warnings.contains("lock-memory: not permitted"), locked == "0", "{warnings} {locked}");
}

#[test]
fn wrong_requests_are_refused_before_anything_is_answered() {
    let desk = Desk::new(4);
    std::fs::create_dir(desk.path("empty")).unwrap();
    for (line, text) in [
        ("--images @none", "images: "),
        ("--images @empty", "0 PNG or JPEG files, none readable; allowed: "),
        ("--images @images --model @images/000.png", "model: "),
        ("--images @images --cpu 100000", "cpu: 100000; allowed here: "),
        ("--images @images --threads 0", "threads: 0; allowed: "),
        ("--images @images --serial @none", "serial: "),
        ("--images @images --serial /dev/null", "serial: /dev/null: "),
        ("--camera @none", "camera: "),
        ("--camera /dev/null", "camera: /dev/null: "),
        ("--pipe @none", "pipe: "),
        ("--pipe @images", "pipe: "),
        ("--images @images --rate 0", "--rate"),
        ("--images @images --pipe -", "--pipe"),
        ("", "--images"),
    ] {
        let model = line.contains("--model");
        let command = if model {
            let folder = desk.dir.path().to_str().unwrap();
            common::robot(&line.replace('@', &format!("{folder}/")))
        } else {
            desk.robot(line)
        }
        .output();
        let output = command.unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {message}");
        assert!(message.contains(text) && output.stdout.is_empty(), "{line}: {message}");
    }
}

#[test]
fn a_full_disk_is_an_error_of_the_system() {
    let desk = Desk::new(2);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = desk.robot("--images @images --repeat --rate 200").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("elsa-robot: standard output: writing failed: "), "{text}");
}
