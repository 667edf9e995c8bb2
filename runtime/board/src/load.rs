//! Measures the load of other processes on the machine, and finds the process that causes it.
//!
//! The load of the other processes is the busy time of all cores minus the busy time of the measured process. Time that
//! a hypervisor gives to other machines (steal) is counted separately, because no process on this machine causes it.
//! Times are in ticks of 10 ms, so a short interval is imprecise.
//!
//! The descendants of the measured process can be measured with it. A process that has ended stays in the times of the
//! process that waited for it. A process whose parent has ended, such as a daemon, is no longer a descendant.

use super::root::{Probe, Root};
use std::collections::HashMap;
use std::time::Duration;

/// Ticks per second. Linux reports times in this unit, independently of the kernel's timer frequency.
const TICKS: f64 = 100.0;

/// Longest line that is parsed.
const LINE: usize = 1024;

/// Times since the system started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time during which cores were busy, summed over the cores.
    pub busy: u64,
    /// Time that a hypervisor gave to other virtual machines.
    pub stolen: u64,
    /// Busy time of the measured process, in user and kernel mode; with its descendants, if they are measured.
    pub process: u64,
}

/// Load, in cores, that other processes and virtual machines caused during an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Others {
    /// Load of other processes.
    pub load: f64,
    /// Load of the hypervisor's other virtual machines.
    pub stolen: f64,
    /// Maximum error of `load` and of `stolen`. The error arises because time is counted in whole ticks.
    pub error: f64,
}

impl Times {
    /// Returns the busy time of the measured process since `before`, in seconds.
    #[must_use]
    pub(crate) fn process_since(self, before: Times) -> f64 {
        self.process.saturating_sub(before.process) as f64 / TICKS
    }

    /// Computes the load that other processes and virtual machines caused on `cores` cores between `before` and `self`.
    /// `self` was read `elapsed` after `before`. Returns `None` if `elapsed` is zero.
    #[must_use]
    pub(crate) fn since(self, before: Times, elapsed: Duration, cores: usize) -> Option<Others> {
        let seconds = elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let cores_of = |ticks: u64| ticks as f64 / TICKS / seconds;
        let process = self.process.saturating_sub(before.process);
        Some(Others {
            load: cores_of(self.busy.saturating_sub(before.busy).saturating_sub(process)),
            stolen: cores_of(self.stolen.saturating_sub(before.stolen)),
            // The error is one tick for each core, and one for the process.
            error: cores_of(cores as u64 + 1),
        })
    }
}

/// A process and its load.
#[derive(Clone, Debug, PartialEq)]
pub struct Busy {
    /// Process number.
    pub pid: u32,
    /// Name of the program.
    pub name: String,
    /// Load in cores.
    pub load: f64,
}

/// Source of the busy times of the machine and of the measured process.
#[derive(Debug)]
pub struct Load {
    root: Root,
    pid: u32,
    machine: Probe,
    process: Option<Probe>,
    /// `true` if the descendants of the process are measured with it.
    descendants: bool,
    /// Number of cores listed in `/proc/stat`.
    pub cores: usize,
}

impl Load {
    /// Opens the files with the times of the machine and of the process `pid`.
    #[must_use]
    pub fn find(root: &Root, pid: u32) -> Option<Load> {
        let machine = Probe::open(root, "proc/stat")?;
        let text = root.read("proc/stat").ok()?;
        let core = |line: &&str| {
            line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let cores = text.lines().filter(core).count().max(1);
        // An emulator of user programs reports times of zero in /proc/PID/stat, but does not recognise the path if it
        // contains a dot.
        let process = Probe::open(root, &format!("proc/./{pid}/stat"));
        Some(Load { root: root.clone(), pid, machine, process, descendants: false, cores })
    }

    /// Measures the descendants of the process with it.
    #[must_use]
    pub fn with_descendants(self) -> Load {
        Load { descendants: true, ..self }
    }

    /// Reads the times now. Allocates nothing unless descendants are measured. Returns `None` if the descendants are
    /// unknown.
    #[must_use]
    pub fn times(&self) -> Option<Times> {
        let mut line = [0; LINE];
        let (busy, stolen) = machine(first(self.machine.read(&mut line)?)?)?;
        let process = match &self.process {
            _ if self.descendants => self.spent_by_family()?,
            Some(process) => spent(process.read(&mut line)?, ALONE)?,
            None => 0,
        };
        Some(Times { busy, stolen, process })
    }

    /// Lists the numbers of the measured processes. Returns `None` if descendants are measured and the system does not
    /// list the children of a process.
    fn family(&self) -> Option<Vec<u32>> {
        let mut family = vec![self.pid];
        let (mut next, mut listed) = (0, !self.descendants);
        while let Some(pid) = family.get(next).filter(|_| self.descendants).copied() {
            next += 1;
            for thread in self.root.entries(&format!("proc/{pid}/task")) {
                // A thread may have ended since it was listed.
                let file = format!("proc/{pid}/task/{thread}/children");
                let Ok(children) = self.root.read(&file) else { continue };
                listed = true;
                family.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
        }
        listed.then_some(family)
    }

    /// Reads the busy time of the measured process and its descendants, and of the descendants that have ended.
    fn spent_by_family(&self) -> Option<u64> {
        // The dot in the path is explained in `find`.
        let spent =
            |pid: u32| spent(self.root.read(&format!("proc/./{pid}/stat")).ok()?.as_bytes(), WITH_CHILDREN);
        Some(self.family()?.into_iter().filter_map(spent).fold(0, u64::saturating_add))
    }

    /// Reads the busy time of every process except the measured ones, in ticks, by process number.
    #[must_use]
    pub fn processes(&self) -> HashMap<u32, u64> {
        self.others().map(|(pid, _, ticks)| (pid, ticks)).collect()
    }

    /// Finds the process with the highest load since `before`, which was read `elapsed` ago. The measured processes are
    /// left out. If a process is not in `before`, all its busy time counts.
    #[must_use]
    pub fn busiest(&self, before: &HashMap<u32, u64>, elapsed: Duration) -> Option<Busy> {
        let took = |(pid, name, ticks): (u32, String, u64)| {
            (pid, name, ticks.saturating_sub(before.get(&pid).copied().unwrap_or(0)))
        };
        let (pid, name, ticks) = self.others().map(took).max_by_key(|(.., ticks)| *ticks)?;
        (ticks > 0).then(|| Busy {
            pid,
            name,
            load: ticks as f64 / TICKS / elapsed.as_secs_f64().max(1.0 / TICKS),
        })
    }

    /// Iterates over the number, name and busy time of every process except the measured ones.
    fn others(&self) -> impl Iterator<Item = (u32, String, u64)> + '_ {
        let names = self.root.entries("proc");
        let family = self.family().unwrap_or_else(|| vec![self.pid]);
        names.into_iter().filter_map(move |name| {
            let pid: u32 = name.parse().ok().filter(|pid| !family.contains(pid))?;
            let line = self.root.read(&format!("proc/{pid}/stat")).ok()?;
            let (open, close) = (line.find('(')?, line.rfind(')')?);
            let name = line.get(open + 1..close)?.to_owned();
            Some((pid, name, spent(line.as_bytes(), ALONE)?))
        })
    }
}

/// Returns the first line of a text.
fn first(text: &[u8]) -> Option<&str> {
    std::str::from_utf8(text.split(|b| *b == b'\n').next()?).ok()
}

/// Parses busy and stolen time from the line `cpu` of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq,
/// steal. User time includes the time of guests.
fn machine(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    let mut times = [0u64; 8];
    let mut found = 0;
    for (time, word) in times.iter_mut().zip(words) {
        *time = word.parse().ok()?;
        found += 1;
    }
    let [user, nice, system, _idle, _wait, irq, softirq, stolen] = times;
    let busy = [user, nice, system, irq, softirq].into_iter().try_fold(0u64, u64::checked_add)?;
    (found >= 4).then_some((busy, stolen))
}

/// Number of fields with the times of a process alone: user time and system time.
const ALONE: usize = 2;
/// Number of fields with the times of a process and of its ended children: the same two times of both.
const WITH_CHILDREN: usize = 4;

/// Parses a process's busy time from `/proc/PID/stat`, as the sum of `fields` fields. The name of the process is in
/// parentheses and may contain blanks and parentheses, so fields are counted from the last parenthesis. The first time
/// is the twelfth field.
fn spent(line: &[u8], fields: usize) -> Option<u64> {
    let close = line.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
    let mut words = rest.split_ascii_whitespace().skip(11);
    (0..fields).try_fold(0u64, |sum, _| sum.checked_add(words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_processes_do_not_shift_their_times() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 700 30 5 4 20 0 1 0 5";
        for name in ["sh", "a b", ") 9 9 (", "x) S 1 1 1 1 1 1 1 1 1 1 9 9"] {
            let line = format!("42 ({name}) {fields}\n");
            let times = [ALONE, WITH_CHILDREN].map(|fields| spent(line.as_bytes(), fields));
            assert_eq!(times, [Some(730), Some(739)], "{name}");
        }
        for bad in ["", "42 sh S 1", "42 (sh) S 1 2", "42 (sh) S 1 2 3 4 5 6 7 8 9 10 x 30"] {
            assert_eq!(spent(bad.as_bytes(), ALONE), None, "{bad}");
        }
    }

    #[test]
    fn the_time_of_this_process_is_told_by_this_machine() {
        let load = Load::find(&Root::machine(), std::process::id()).unwrap();
        let before = load.times().unwrap();
        let start = std::time::Instant::now();
        // The two counters are not read at one moment: the system updates them one after the other.
        let grown = |now: Times| now.process >= before.process + 2 && now.busy > before.busy;
        while !grown(load.times().unwrap()) {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        assert!(!load.processes().contains_key(&std::process::id()));
    }

    #[test]
    fn descendants_are_measured_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = folder.path().join("proc").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let process = |pid: u32, own: u64, ended: u64| {
            let line = format!("{pid} (p{pid}) S 1 1 1 0 -1 0 0 0 0 0 {own} 0 {ended} 0 20 0 1 0 5\n");
            put(&format!("{pid}/stat"), &line);
        };
        put("stat", "cpu  5000 0 0 90000\ncpu0 5000 0 0 90000\n");
        for (pid, own, ended) in [(7, 1, 20), (8, 300, 0), (9, 4000, 50000), (11, 600_000, 0)] {
            process(pid, own, ended);
        }
        let root = Root::new(folder.path());
        let load = || Load::find(&root, 7).unwrap().with_descendants();
        // The system does not list children, so the time of the descendants is unknown.
        assert_eq!((load().times(), load().processes().len()), (None, 3));
        // The second thread of the process started process 8, which started process 9.
        for (task, children) in [("7/task/7", ""), ("7/task/70", "8 "), ("8/task/8", "9 "), ("9/task/9", "")]
        {
            put(&format!("{task}/children"), children);
        }
        assert_eq!(load().times().map(|times| times.process), Some(54_321));
        assert_eq!(load().processes().into_keys().collect::<Vec<_>>(), [11]);
        assert_eq!(Load::find(&root, 7).unwrap().times().map(|times| times.process), Some(1));
        // Process 8 has ended, and process 7 has waited for it.
        process(7, 1, 320);
        put("7/task/70/children", "9 ");
        std::fs::remove_dir_all(folder.path().join("proc/8")).unwrap();
        assert_eq!(load().times().map(|times| times.process), Some(54_321));
        let (before, after) =
            (Times { process: 150, ..Times::default() }, Times { process: 400, ..Times::default() });
        assert_eq!((after.process_since(before), before.process_since(after)), (2.5, 0.0));
    }

    #[test]
    fn guests_and_waiting_are_not_counted() {
        assert_eq!(machine("cpu  100 20 30 4000 500 6 7 80 90 10"), Some((163, 80)));
        // Old kernels have fewer fields.
        assert_eq!(machine("cpu  100 20 30 4000"), Some((150, 0)));
        for bad in ["", "cpu0 1 2 3 4", "cpu 1 2", "cpu -1 2 3 4", "cpu 18446744073709551615 1 1 1"] {
            assert_eq!(machine(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_others_took_is_what_is_left() {
        let before = Times { busy: 1000, stolen: 5, process: 100 };
        let after = Times { busy: 1250, stolen: 15, process: 300 };
        let others = after.since(before, Duration::from_secs(1), 2).unwrap();
        assert_eq!(others, Others { load: 0.5, stolen: 0.1, error: 0.03 });
        // Counters may decrease, as waiting time can. A decrease is not a load.
        assert_eq!(before.since(after, Duration::from_secs(1), 2).unwrap().load, 0.0);
        assert_eq!(after.since(before, Duration::ZERO, 2), None);
    }
}
