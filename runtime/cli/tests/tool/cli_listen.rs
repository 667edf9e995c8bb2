//! Tests `elsa listen` and the sink of `elsa bench --serial` over pseudo-terminals: a clean line, a noisy line, a
//! reader that stops, and ports that disappear and come back. Every record that is shown must have been sent.

use crate::common::{Desk, elsa, wait_for};
use elsa_board::serial::Sink;
use elsa_cli::report;
use elsa_core::random::Random;
use elsa_core::telemetry::frame::{Counts, Decoder, Encoder, FRAME, Message};
use elsa_core::telemetry::record::{Cell, End, Record, Start, Throttling, Trace, text};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Both ends of a pseudo-terminal. Other processes open the slave by its path.
struct Pty {
    master: File,
    /// The open slave. As long as it is open, the master can be used even if no other process has opened the slave.
    slave: File,
    path: PathBuf,
}

impl Pty {
    fn new() -> Pty {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path: PathBuf = ptsname(&master, Vec::new()).unwrap().into_string().unwrap().into();
        let slave = File::options().read(true).write(true).open(&path).unwrap();
        let mut settings = tcgetattr(&slave).unwrap();
        settings.make_raw();
        tcsetattr(&slave, OptionalActions::Now, &settings).unwrap();
        Pty { master: File::from(master), slave, path }
    }

    fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Writes `bytes` to the master from another thread, because the reader may be slow.
    fn send(&self, bytes: Vec<u8>) {
        let mut master = self.master.try_clone().unwrap();
        thread::spawn(move || master.write_all(&bytes));
    }

    /// Reads messages from the master until `done` returns `true` for all messages read so far.
    fn hear(&mut self, decoder: &mut Decoder, done: impl Fn(&[Message]) -> bool) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut bytes = [0; 1024];
        while !done(&messages) {
            let n = self.master.read(&mut bytes).unwrap();
            messages.extend(bytes[..n].iter().filter_map(|&byte| decoder.push(byte)));
        }
        messages
    }
}

/// Reads messages from the master until no process has the slave open.
fn rest(port: Pty, decoder: &mut Decoder) -> Vec<Message> {
    let Pty { mut master, slave, .. } = port;
    drop(slave);
    let (mut messages, mut bytes) = (Vec::new(), [0; 1024]);
    while let Ok(n @ 1..) = master.read(&mut bytes) {
        messages.extend(bytes[..n].iter().filter_map(|&byte| decoder.push(byte)));
    }
    messages
}

fn cell(n: u64) -> Record {
    Record::Cell(Cell {
        backend: text("neon"),
        method: text(if n.is_multiple_of(2) { "elsa" } else { "math" }),
        shape: text(&format!("1,1,{n},{n},64")),
        n,
        p50_ms: 1.0 / (n as f64 + 0.1),
        rel_l2: if n == 3 { f64::NAN } else { 1e-7 },
        temp_c: n.is_multiple_of(3).then_some(41.5),
        certified: true,
        throttled: Throttling::NotSeen,
        ..Cell::default()
    })
}

/// Builds the records of a run with `cells` rows.
fn records(cells: u64) -> Vec<Record> {
    let mut records = vec![Record::Start(Start { version: text("0.1.0"), cores: 6, ..Start::default() })];
    for n in 0..cells {
        records.push(cell(n));
        records.push(Record::Trace(Trace {
            t_s: n as f64 / 10.0,
            power_mw: Some(5123.5),
            ..Trace::default()
        }));
    }
    records.push(Record::End(End { cells: cells as u32, clean_cells: 0, seconds: 1.5 }));
    records
}

fn frames(run: u32, records: &[Record]) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(run);
    records.iter().map(|record| encoder.encode(record, &mut [0; FRAME]).unwrap().to_vec()).collect()
}

/// Returns the lines that `elsa bench --json` prints for the records.
fn lines(records: &[Record]) -> Vec<String> {
    let mut out = Vec::new();
    for record in records {
        report::record(&mut out, record).unwrap();
    }
    String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
}

/// Requires that the record is the cell that was sent with the same sequence number. The cells are compared as text,
/// because NaN is not equal to itself.
fn require_sent(message: &Message) {
    let sent = cell(u64::from(message.sequence));
    assert_eq!(lines(std::slice::from_ref(&message.record)), lines(&[sent]));
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Requires the exit status `status`; returns the lines of standard output and the text of standard error.
fn ended(output: &Output, status: i32) -> (Vec<String>, String) {
    let (out, err) = (text_of(&output.stdout), text_of(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{out}{err}");
    (out.lines().map(str::to_owned).collect(), err)
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// Returns a channel that receives the lines of a pipe as they arrive.
fn following(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (to, lines) = mpsc::channel();
    thread::spawn(move || {
        BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|line| to.send(line))
    });
    lines
}

fn next(lines: &Receiver<String>) -> String {
    lines.recv_timeout(Duration::from_secs(60)).unwrap()
}

/// Concatenates frames, with one bit flipped in each frame of `flipped` and the middle removed from each frame of
/// `cut`.
fn damaged(frames: &[Vec<u8>], flipped: &[usize], cut: &[usize]) -> Vec<u8> {
    let mut bytes = vec![0];
    for (i, frame) in frames.iter().enumerate() {
        let mut frame = frame.clone();
        let middle = frame.len() / 2;
        if flipped.contains(&i) {
            frame[middle] ^= if frame[middle] == 0x10 { 0x20 } else { 0x10 };
        }
        if cut.contains(&i) {
            frame.drain(middle..middle + 3);
        }
        bytes.extend(frame);
    }
    bytes
}

#[test]
fn what_the_sink_sends_is_what_is_heard_record_for_record() {
    let (from, to) = (Pty::new(), Pty::new());
    let records = records(20);
    let mut sink = Sink::open(from.name()).unwrap();
    let (mut source, mut target) = (from.master.try_clone().unwrap(), to.master.try_clone().unwrap());
    // The line begins with part of a frame from an earlier sender that was ended.
    target.write_all(&frames(6, &records)[0][..9]).unwrap();
    thread::spawn(move || std::io::copy(&mut source, &mut target));
    let child = Desk::new().start("", &format!("listen {} --json", to.name()));
    for record in &records {
        sink.send(record);
    }
    let sent = sink.close();
    assert_eq!((sent.sent, sent.dropped, sent.reconnects), (records.len() as u64, 0, 0));
    let (shown, err) = ended(&child.wait_with_output().unwrap(), 0);
    assert_eq!(shown, lines(&records));
    assert!(err.contains("42 records, none lost") && err.lines().count() == 1, "{err}");
}

/// Checks that the receiver shows exactly the records that the benchmark prints, and writes a complete page.
#[test]
fn a_benchmark_is_heard_record_for_record() {
    let (from, to) = (Pty::new(), Pty::new());
    let (mut source, mut target) = (from.master.try_clone().unwrap(), to.master.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut source, &mut target));
    let desk = Desk::new();
    let page = desk.path("page.html");
    let ear = desk.start("", &format!("listen {} --json --html {}", to.name(), page.display()));
    let shapes = "--shape 1,1,64,64,64 --shape 2,2,9,100,16,causal,mask=bool";
    let line = format!("bench --json --seconds 0.02 --warmup 1 {shapes} --serial {}", from.name());
    let told = elsa(&line.split_whitespace().collect::<Vec<_>>());
    let told = (text_of(&told.stdout), text_of(&told.stderr), told.status.code());
    assert!(matches!(told.2, Some(0 | 5)), "{told:?}");
    let (shown, err) = ended(&ear.wait_with_output().unwrap(), 0);
    assert_eq!(shown, told.0.lines().map(str::to_owned).collect::<Vec<_>>());
    assert!(shown.iter().filter(|line| line.contains("\"what\":\"bench\"")).count() == 4, "{shown:?}");
    assert!(err.contains("none lost"), "{err}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("2,2,9,100,16,causal,mask=bool") && page.trim_end().ends_with("</html>"), "{page}");
}

#[test]
fn what_noise_has_touched_is_counted_and_not_shown() {
    let port = Pty::new();
    let records = records(10);
    let frames = frames(7, &records);
    let (flipped, cut) = ([0, 3, 8], [5, 6]);
    port.send(damaged(&frames, &flipped, &cut));
    let (shown, err) = ended(&elsa(&["listen", port.name(), "--json"]), 3);
    let mut expected = lines(&records);
    for at in [8, 6, 5, 3, 0] {
        expected.remove(at);
    }
    assert_eq!(shown, expected);
    assert!(err.contains("17 records; in all 5 records lost, 5 frames broken"), "{err}");
    // The same frames are shown as a table and as CSV.
    port.send(damaged(&frames, &flipped, &cut));
    let (shown, _) = ended(&elsa(&["listen", port.name()]), 3);
    let rows = shown.iter().filter(|line| line.ends_with(" neon           0")).count();
    assert!(shown[0].starts_with("a run whose start was lost") && rows == 8, "{shown:?}");
    assert!(shown[shown.len() - 1].starts_with("10 cells, 0 clean"), "{shown:?}");
    port.send(damaged(&frames, &flipped, &cut));
    let (shown, _) = ended(&elsa(&["listen", port.name(), "--csv"]), 3);
    assert!(shown[0].starts_with("workload,backend,kernel,method,") && shown.len() == 1 + 8, "{shown:?}");
}

#[test]
fn noise_alone_shows_nothing_and_doubts_the_rate() {
    let port = Pty::new();
    let mut child = Desk::new().start("", &format!("listen {}:9600 --json", port.name()));
    let mut random = Random::new(1);
    port.send((0..4000).map(|_| random.below(256) as u8).chain([0]).collect());
    let said = following(child.stderr.take().unwrap());
    let first = next(&said);
    assert!(first.contains("no frame is whole; is 9600 the rate of the sender?"), "{first}");
    assert!(next(&said).contains("frames broken"));
    interrupt(&child);
    let (shown, _) = ended(&child.wait_with_output().unwrap(), 3);
    assert_eq!(shown, Vec::<String>::new());
    let last = said.iter().last().unwrap();
    assert!(last.contains("0 records; in all") && last.contains("broken"), "{last}");
}

/// Checks that bytes without an end of frame count as noise, however many there are.
#[test]
fn noise_without_a_zero_is_counted() {
    let port = Pty::new();
    let mut child = Desk::new().start("", &format!("listen {} --json", port.name()));
    let said = following(child.stderr.take().unwrap());
    port.send(vec![0x55; 3 << 20]);
    while !next(&said).contains("no frame is whole") {}
    interrupt(&child);
    let (shown, _) = ended(&child.wait_with_output().unwrap(), 3);
    assert_eq!(shown, Vec::<String>::new());
    let last = said.iter().last().unwrap();
    assert!(last.contains("0 records; in all") && last.contains("bytes of noise;"), "{last}");
}

#[test]
fn a_reader_that_stands_still_holds_nobody_up() {
    let mut port = Pty::new();
    let sent = 1000;
    let mut sink = Sink::open(&format!("{}:4000000", port.name())).unwrap();
    let start = Instant::now();
    for n in 0..sent {
        sink.send(&cell(n));
    }
    // Nothing is reading, so a sink that waited for the reader would never return.
    let took = start.elapsed();
    let mut decoder = Decoder::new();
    let mut messages = port.hear(&mut decoder, |messages| messages.len() >= 5);
    let told = sink.close();
    // The sink stops trying half a second after the port accepted the last byte.
    assert!(took < Duration::from_secs(5) && start.elapsed() < took + Duration::from_secs(9));
    assert_eq!((told.sent + told.dropped, told.reconnects), (sent, 0));
    assert!(told.sent > 0 && told.dropped > sent / 2, "{told:?}");
    // The records that the port accepted arrive intact, followed by at most one partial frame.
    messages.extend(rest(port, &mut decoder));
    messages.iter().for_each(require_sent);
    let counts = decoder.counts();
    let heard_of = messages.len() as u64;
    assert!((told.sent..=told.sent + 1).contains(&heard_of), "{told:?}, {counts:?}");
    assert_eq!((counts.broken, counts.foreign), (0, 0));
}

#[test]
fn the_sink_goes_on_where_a_port_comes_back_and_tells_what_was_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("port");
    let mut first = Pty::new();
    symlink(&first.path, &link).unwrap();
    let mut sink = Sink::open(link.to_str().unwrap()).unwrap();
    let mut decoder = Decoder::new();
    for n in 0..3 {
        sink.send(&cell(n));
    }
    let mut heard = first.hear(&mut decoder, |messages| messages.len() == 3);
    drop(first);
    decoder.cut();
    // While there is no port, more records are sent than the queue has room for.
    let start = Instant::now();
    for n in 3..1000 {
        sink.send(&cell(n));
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let mut second = Pty::new();
    std::fs::remove_file(&link).unwrap();
    symlink(&second.path, &link).unwrap();
    heard.extend(second.hear(&mut decoder, |messages| messages.len() >= 2));
    // Sending to the second port has made room in the queue.
    sink.send(&cell(1000));
    heard.extend(
        second.hear(&mut decoder, |messages| messages.iter().any(|message| message.sequence == 1000)),
    );
    let told = sink.close();
    // A frame that was written just before the port disappeared may be lost.
    let heard_of = heard.len() as u64;
    assert_eq!((told.sent + told.dropped, told.reconnects), (1001, 1));
    assert!(told.sent >= heard_of && told.dropped > 500, "{told:?}, {heard_of} heard");
    heard.iter().for_each(require_sent);
    // From the sequence numbers, the reader knows exactly how many records are missing.
    let expected = Counts { records: heard_of, lost: 1001 - heard_of, ..Counts::default() };
    assert_eq!(decoder.counts(), expected);
}

/// Makes `link` point to another port, atomically.
fn point(link: &Path, port: &Pty) {
    let other = link.with_extension("new");
    symlink(&port.path, &other).unwrap();
    std::fs::rename(&other, link).unwrap();
}

#[test]
fn listening_goes_on_where_a_port_comes_back_and_ends_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("port");
    let first = Pty::new();
    point(&link, &first);
    let records = records(3);
    let all = frames(7, &records);
    let mut child = Desk::new().start("", &format!("listen {} --json --follow", link.display()));
    let (shown, said) = (following(child.stdout.take().unwrap()), following(child.stderr.take().unwrap()));
    let mut lines = lines(&records).into_iter();
    // Sends three records and part of the fourth.
    first.send([&[0], &all[..3].concat()[..], &all[3][..9]].concat());
    for _ in 0..3 {
        assert_eq!(Some(next(&shown)), lines.next());
    }
    drop(first);
    let line = next(&said);
    assert!(line.contains("gone; waiting until it is back"), "{line}");
    let second = Pty::new();
    point(&link, &second);
    second.send([&[0], &all[3..].concat()[..]].concat());
    for line in lines {
        assert_eq!(next(&shown), line);
    }
    // The command continues after the end of a run, because --follow is given.
    second.send(frames(8, &records[..1]).concat());
    assert_eq!(next(&shown), self::lines(&records)[0]);
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(next(&said).contains("9 records, none lost") && said.recv().is_err() && shown.recv().is_err());
}

#[test]
fn runs_that_are_joined_late_say_so() {
    let port = Pty::new();
    let records = records(2);
    let all = frames(7, &records);
    port.send([&all[1][5..], &all[2..].concat()].concat());
    let (shown, err) = ended(&elsa(&["listen", port.name(), "--json"]), 3);
    assert_eq!(shown, lines(&records)[2..]);
    assert!(err.contains("4 records; in all 2 records lost;"), "{err}");
}

#[test]
fn ports_that_cannot_be_used_are_refused_by_name() {
    let port = Pty::new();
    let name = port.name();
    let refused = |argument: &str, status: i32, words: &[&str]| {
        let (shown, err) = ended(&elsa(&["listen", argument]), status);
        assert!(shown.is_empty() && err.lines().count() == 1 && err.starts_with("elsa: PORT: "), "{err}");
        assert!(words.iter().all(|word| err.contains(word)), "{err}");
    };
    refused("/dev/no-such-port", 2, &["/dev/no-such-port: no such port", "allowed: "]);
    refused(&format!("{name}:fast"), 2, &["rate 'fast'", "allowed: PORT[:BAUD]", "115200"]);
    refused("/dev/null", 2, &["/dev/null: ", "allowed: a serial port"]);
    let _sink = Sink::open(name).unwrap();
    refused(name, 3, &["in use by another process", "allowed: "]);
    let (_, err) = ended(&elsa(&["listen"]), 2);
    assert!(err.contains("PORT[:BAUD]>: missing; allowed: elsa listen") && !err.contains("FILE"), "{err}");
    let (_, err) = ended(&elsa(&["listen", name, "--json", "--csv"]), 2);
    assert!(err.contains("--json") && err.contains("--csv") && err.contains("one of the two"), "{err}");
}

#[test]
fn a_reader_of_standard_output_that_has_gone_ends_the_command() {
    let port = Pty::new();
    let mut child = Desk::new().start("", &format!("listen {} --json --follow", port.name()));
    drop(child.stdout.take());
    // While another test starts a program, that program may briefly hold an inherited copy of the pipe's reading end.
    // Frames are therefore sent repeatedly.
    let (mut status, mut run) = (None, 0);
    wait_for("the command", || {
        run += 1;
        port.send(frames(run, &records(1)).concat());
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(141));
}
