//! Serial ports: how they are named and opened, and the [`Sink`] that sends the records of a benchmark.

mod sink;

pub use sink::{Sent, Sink};

use serialport::{DataBits, ErrorKind, FlowControl, Parity, StopBits, TTYPort};
use std::fmt::{self, Display, Formatter};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

/// Syntax of a port, for messages.
pub const VALUE: &str = "PORT[:BAUD]";

/// Baud rate of a port that is named without a rate.
pub const BAUD: u32 = 115_200;

/// Allowed baud rates.
const BAUDS: std::ops::RangeInclusive<u32> = 50..=4_000_000;

/// Longest time that one read or write waits.
const ATTEMPT: Duration = Duration::from_millis(100);

/// Time between two attempts to open a port that has disappeared.
pub const RETRY: Duration = Duration::from_millis(200);

/// Reason why a port cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The rate after the colon is invalid.
    #[error(
        "{port}: rate '{found}'; allowed: {VALUE} with BAUD from {} to {}, {BAUD} without it",
        BAUDS.start(),
        BAUDS.end()
    )]
    Baud {
        /// Port, without its rate.
        port: String,
        /// Text after the colon.
        found: String,
    },
    /// No device has this name.
    #[error("{}: no such port; allowed: a serial port, such as /dev/ttyTHS1 or /dev/ttyUSB0", path.display())]
    Absent {
        /// Path of the port.
        path: PathBuf,
    },
    /// The user has no permission to use the port.
    #[error(
        "{}: no permission; allowed: a port that the user may use. This one is for the group {group}{}",
        path.display(),
        joining(group)
    )]
    Denied {
        /// Path of the port.
        path: PathBuf,
        /// Group whose members may use the port.
        group: String,
    },
    /// Another process uses the port.
    #[error(
        "{path}: in use by another process; allowed: a port that nobody else uses (fuser -v {path} names who does)",
        path = path.display()
    )]
    Busy {
        /// Path of the port.
        path: PathBuf,
    },
    /// The path is not a serial port, or the port fails.
    #[error("{}: {reason}; allowed: a serial port", path.display())]
    Unfit {
        /// Path that was to be opened.
        path: PathBuf,
        /// Explanation of the fault.
        reason: String,
    },
    /// The system did not start the thread that writes to the port.
    #[error("{}: the system started no thread: {reason}", path.display())]
    Thread {
        /// Path of the port.
        path: PathBuf,
        /// Error of the system.
        reason: String,
    },
}

impl PortError {
    /// Returns `true` if the user's request caused the error, and not the system.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        !matches!(self, PortError::Busy { .. } | PortError::Thread { .. })
    }
}

/// Returns advice on how a user gets access to a port that belongs to `group`. A port of the group tty is a console
/// that a service uses.
fn joining(group: &str) -> String {
    match group {
        "tty" => ", a console: sudo systemctl stop nvgetty frees that of a Jetson".to_owned(),
        "root" => String::new(),
        _ => format!(": sudo usermod -aG {group} $USER, then log in again"),
    }
}

/// Serial port and its baud rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Device file of the port.
    pub path: PathBuf,
    /// Baud rate, in bits per second.
    pub baud: u32,
}

impl Port {
    /// Parses `text`: a path, or a path, a colon and a rate. Paths may contain colons, as in `/dev/serial/by-path`: if
    /// the complete text is the name of an existing file, that file is the port.
    ///
    /// # Errors
    /// Returns an error for an invalid rate.
    pub fn parse(text: &str) -> Result<Port, PortError> {
        let whole = Port { path: text.into(), baud: BAUD };
        let Some((port, found)) = text.rsplit_once(':') else { return Ok(whole) };
        if whole.path.exists() || found.contains('/') {
            return Ok(whole);
        }
        match found.parse() {
            Ok(baud) if BAUDS.contains(&baud) => Ok(Port { path: port.into(), baud }),
            _ => Err(PortError::Baud { port: port.into(), found: found.into() }),
        }
    }

    /// Returns `true` if the port's device file exists. Allocates nothing, unlike an attempt to open the port.
    fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Opens the port for exclusive use, with eight bits, no parity and no flow control. Above 115200 baud there is a
    /// second stop bit, because the fast ports of a Jetson need one. Reads and writes wait for at most a tenth of a
    /// second.
    ///
    /// # Errors
    /// Returns an error if the port cannot be opened.
    pub fn open(&self) -> Result<TTYPort, PortError> {
        let Port { path, baud } = self;
        let path = || path.clone();
        let file = std::fs::metadata(path()).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => PortError::Absent { path: path() },
            _ => PortError::Unfit { path: path(), reason: e.to_string() },
        })?;
        if !file.file_type().is_char_device() {
            return Err(PortError::Unfit { path: path(), reason: "not a device".into() });
        }
        let stop = if *baud > BAUD { StopBits::Two } else { StopBits::One };
        serialport::new(path().to_string_lossy(), *baud)
            .data_bits(DataBits::Eight)
            .parity(Parity::None)
            .stop_bits(stop)
            .flow_control(FlowControl::None)
            .timeout(ATTEMPT)
            .open_native()
            .map_err(|e| match e.kind {
                ErrorKind::NoDevice => PortError::Busy { path: path() },
                ErrorKind::Io(io::ErrorKind::NotFound) => PortError::Absent { path: path() },
                ErrorKind::Io(io::ErrorKind::PermissionDenied) => {
                    PortError::Denied { path: path(), group: group(file.gid()) }
                }
                _ => PortError::Unfit { path: path(), reason: e.description },
            })
    }
}

impl Display for Port {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} baud", self.path.display(), self.baud)
    }
}

/// Returns the name of a group, or its number if it has no name.
fn group(id: u32) -> String {
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let name = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| id.to_string())
}

/// Returns `true` if an attempt to read or write failed only because of a timeout or an interruption.
#[must_use]
pub fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_paths_with_or_without_a_rate() {
        let port = |path: &str, baud| Ok(Port { path: path.into(), baud });
        assert_eq!(Port::parse("/dev/ttyTHS1"), port("/dev/ttyTHS1", 115_200));
        assert_eq!(Port::parse("/dev/ttyTHS1:921600"), port("/dev/ttyTHS1", 921_600));
        assert_eq!(Port::parse("/dev/by-path/pci:1/port"), port("/dev/by-path/pci:1/port", BAUD));
        // If the complete text is the name of a file, it contains no rate.
        let folder = tempfile::tempdir().unwrap();
        let colon = folder.path().join("usb:9600");
        let text = colon.to_str().unwrap();
        assert_eq!(Port::parse(text).unwrap().baud, 9600);
        std::fs::write(&colon, "").unwrap();
        assert_eq!(Port::parse(text), port(text, BAUD));
        for found in ["", "fast", "0", "49", "4000001", "-9600", "115200.0", "99999999999"] {
            let error = Port::parse(&format!("/dev/ttyTHS1:{found}")).unwrap_err();
            let expected =
                format!("/dev/ttyTHS1: rate '{found}'; allowed: PORT[:BAUD] with BAUD from 50 to 4000000");
            assert!(error.is_request() && error.to_string().starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn what_is_no_port_is_refused_by_name() {
        for (path, why) in [
            ("/dev/no-such-port", "no such port; allowed: a serial port"),
            ("/dev/null/port", "Not a directory"),
            ("/dev/null", "; allowed: a serial port"),
            ("/", "not a device"),
        ] {
            let error = Port::parse(path).unwrap().open().unwrap_err();
            let text = error.to_string();
            assert!(
                error.is_request() && text.starts_with(&format!("{path}: ")) && text.contains(why),
                "{text}"
            );
        }
    }

    #[test]
    fn a_port_of_others_names_the_group_that_may_use_it() {
        let denied = |group: &str| PortError::Denied { path: "/dev/ttyTHS1".into(), group: group.into() };
        let text = denied("dialout").to_string();
        assert!(text.contains("group dialout: sudo usermod -aG dialout $USER"), "{text}");
        assert!(denied("tty").to_string().contains("a console"));
        assert_eq!((group(0), group(u32::MAX)), ("root".into(), u32::MAX.to_string()));
    }
}
