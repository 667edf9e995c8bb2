//! Releases of the system software, and power modes.

use super::root::Root;
use serde::Serialize;

/// L4T releases, each with the JetPack that contains it. The entries of JetPack 4.6 to 4.6.6 are from jetson_stats and
/// jetson-containers. The entries of JetPack 5 and 6 are from jetson-containers. The JetPack of any other release is
/// unknown, not guessed.
const JETPACKS: [(&str, &str); 27] = [
    ("32.4.2", "4.4 DP"),
    ("32.4.3", "4.4"),
    ("32.4.4", "4.4.1"),
    ("32.5", "4.5"),
    ("32.5.0", "4.5"),
    ("32.5.1", "4.5.1"),
    ("32.5.2", "4.5.1"),
    ("32.6.1", "4.6"),
    ("32.7.1", "4.6.1"),
    ("32.7.2", "4.6.2"),
    ("32.7.3", "4.6.3"),
    ("32.7.4", "4.6.4"),
    ("32.7.5", "4.6.5"),
    ("32.7.6", "4.6.6"),
    ("34.1.0", "5.0 DP"),
    ("34.1.1", "5.0.1 DP"),
    ("35.1.0", "5.0.2"),
    ("35.2.1", "5.1"),
    ("35.3.1", "5.1.1"),
    ("35.4.1", "5.1.2"),
    ("35.6.2", "5.1.5"),
    ("36.2.0", "6.0 DP"),
    ("36.3.0", "6.0"),
    ("36.4.0", "6.1"),
    ("36.4.2", "6.1.1"),
    ("36.4.3", "6.2"),
    ("36.4.4", "6.2.1"),
];

/// Returns the L4T release, such as `32.7.1`.
#[must_use]
pub fn l4t(root: &Root) -> Option<String> {
    number(&root.line("etc/nv_tegra_release")?)
}

/// Parses the L4T release from a line such as `# R32 (release), REVISION: 7.1, GCID: 1, BOARD: t186ref`.
fn number(line: &str) -> Option<String> {
    let mut parts = line.split(',').map(str::trim);
    let major = parts.next()?.strip_prefix("# R")?.split_whitespace().next()?;
    let minor = parts.next()?.strip_prefix("REVISION:")?.trim();
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    (plain(major) && plain(minor)).then(|| format!("{major}.{minor}"))
}

/// Returns the JetPack that contains an L4T release.
#[must_use]
pub fn jetpack(l4t: &str) -> Option<&'static str> {
    JETPACKS.iter().find(|(release, _)| *release == l4t).map(|(_, jetpack)| *jetpack)
}

/// A power mode of `nvpmodel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PowerMode {
    /// Number of the mode, which is the argument of `nvpmodel -m`.
    pub id: u32,
    /// Name; `None` if the configuration of `nvpmodel` does not contain it.
    pub name: Option<String>,
}

impl std::fmt::Display for PowerMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.id)?;
        self.name.iter().try_for_each(|name| write!(f, " {name}"))
    }
}

/// Reads the current power mode from the files of `nvpmodel`. The state file contains `pmode:0000`, followed by
/// `fmode:quiet` on some releases. The configuration file contains `< POWER_MODEL ID=0 NAME=MAXN >`. Programs for Nano,
/// Xavier and Orin read the mode this way; it is not confirmed that a TX2 has both files. Returns `None` if there is no
/// state file, as on a board whose mode was never set.
#[must_use]
pub fn power_mode(root: &Root) -> Option<PowerMode> {
    let state = root.line("var/lib/nvpmodel/status")?;
    let id: u32 = state.split_whitespace().find_map(|word| word.strip_prefix("pmode:"))?.parse().ok()?;
    let configuration = root.read("etc/nvpmodel.conf").unwrap_or_default();
    let name = configuration.lines().filter_map(model).find(|(found, _)| *found == id).map(|(_, name)| name);
    Some(PowerMode { id, name })
}

/// Parses the number and name of a power mode from the first line of its configuration.
fn model(line: &str) -> Option<(u32, String)> {
    let inside = line.trim().strip_prefix('<')?.strip_suffix('>')?.trim().strip_prefix("POWER_MODEL")?;
    let of = |key: &str| inside.split_whitespace().find_map(|word| word.strip_prefix(key));
    Some((of("ID=")?.parse().ok()?, of("NAME=")?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_and_none_is_guessed() {
        let r32 = "# R32 (release), REVISION: 7.1, GCID: 29689809, BOARD: t186ref, EABI: aarch64, DATE: x";
        assert_eq!(number(r32).as_deref(), Some("32.7.1"));
        assert_eq!(number("# R36 (release), REVISION: 4.3").as_deref(), Some("36.4.3"));
        for bad in
            ["", "R32, REVISION: 7.1", "# R32 (release)", "# R (release), REVISION: 7", "# Rx, REVISION: 1"]
        {
            assert_eq!(number(bad), None, "{bad}");
        }
        assert_eq!((jetpack("32.7.1"), jetpack("32.7.6")), (Some("4.6.1"), Some("4.6.6")));
        assert_eq!((jetpack("32.7"), jetpack("99.1")), (None, None));
    }

    #[test]
    fn power_modes_have_names_where_the_configuration_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        let write = |file: &str, text: &str| {
            std::fs::create_dir_all(root.path(file).parent().unwrap()).unwrap();
            std::fs::write(root.path(file), text).unwrap();
        };
        assert_eq!(power_mode(&root), None);
        write("var/lib/nvpmodel/status", "pmode:0003 fmode:quiet\n");
        assert_eq!(power_mode(&root).unwrap().to_string(), "3");
        // The name of mode 3 comes after a comment with a wrong name and after another mode.
        write(
            "etc/nvpmodel.conf",
            "# < POWER_MODEL ID=3 NAME=WRONG >\n< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_1 1\n\
             < POWER_MODEL ID=3 NAME=MAXP_CORE_ARM >\n< PM_CONFIG DEFAULT=0 >\n",
        );
        assert_eq!(power_mode(&root).unwrap().to_string(), "3 MAXP_CORE_ARM");
        for bad in ["", "pmode:\n", "pmode:-1\n", "mode:0\n"] {
            write("var/lib/nvpmodel/status", bad);
            assert_eq!(power_mode(&root), None, "{bad}");
        }
    }
}
