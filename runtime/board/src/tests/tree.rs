//! Trees of files that simulate boards. Paths, names and contents are taken from the documentation of the boards, and
//! from programs that read these files. Each tree contains the traps of its board: files that mislead a program that
//! trusts them.

use crate::root::Root;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Number of the measured process.
pub const OWN: u32 = 4242;

/// Replaces a file atomically, so that a reader never sees it empty. Truncating and rewriting it would also make the
/// file system wait for the disk.
pub fn overwrite(path: &Path, contents: &[u8]) {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
    file.write_all(contents).unwrap();
    file.set_len(contents.len() as u64).unwrap();
}

/// A tree in a temporary folder.
pub struct Tree(tempfile::TempDir);

impl Tree {
    /// Creates a tree. If the system has a folder in memory, the tree is there, because writing hundreds of small files
    /// to a disk takes seconds.
    fn new() -> Tree {
        Tree(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    pub fn root(&self) -> Root {
        Root::new(self.0.path())
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file, and creates its parent folders.
    pub fn put(&self, file: &str, contents: impl AsRef<[u8]>) {
        let path = self.0.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        overwrite(&path, contents.as_ref());
    }

    pub fn link(&self, link: &str, target: &str) {
        let path = self.0.path().join(link);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    pub fn remove(&self, file: &str) {
        fs::remove_file(self.0.path().join(file)).unwrap();
    }

    /// Reads the number in a file, like a program that does not know the traps.
    pub fn number(&self, file: &str) -> f64 {
        fs::read_to_string(self.0.path().join(file)).unwrap().trim().parse().unwrap()
    }

    /// Writes thermal zones, each with its type and temperature, in the folders and links that the system uses.
    fn zones(&self, zones: &[(&str, i64)]) {
        for (n, (name, millidegrees)) in zones.iter().enumerate() {
            let folder = format!("sys/devices/virtual/thermal/thermal_zone{n}");
            self.put(&format!("{folder}/type"), format!("{name}\n"));
            self.put(&format!("{folder}/temp"), format!("{millidegrees}\n"));
            self.link(
                &format!("sys/class/thermal/thermal_zone{n}"),
                &format!("../../devices/virtual/thermal/thermal_zone{n}"),
            );
        }
    }

    fn cooling(&self, devices: &[(&str, i64)]) {
        for (n, (kind, state)) in devices.iter().enumerate() {
            self.put(&format!("sys/class/thermal/cooling_device{n}/type"), format!("{kind}\n"));
            self.put(&format!("sys/class/thermal/cooling_device{n}/cur_state"), format!("{state}\n"));
        }
    }

    /// Writes a core: whether it is online, and its current, lowest and highest clock in kHz.
    pub fn core(&self, core: usize, on: bool, khz: [u64; 3]) {
        let folder = format!("sys/devices/system/cpu/cpu{core}");
        self.put(&format!("{folder}/online"), if on { "1\n" } else { "0\n" });
        let names = ["scaling_cur_freq", "scaling_min_freq", "scaling_max_freq"];
        for (name, khz) in names.iter().zip(khz) {
            self.put(&format!("{folder}/cpufreq/{name}"), format!("{khz:07}\n"));
        }
        self.put(&format!("{folder}/cpufreq/scaling_governor"), "schedutil\n");
    }

    /// Writes a device with its current, lowest and highest clock in Hz, and its load.
    fn device(&self, folder: &str, name: &str, hz: [u64; 3], load: Option<u64>) {
        let folder = format!("sys/class/devfreq/{folder}");
        self.put(&format!("{folder}/device/of_node/name"), format!("{name}\0"));
        for (file, hz) in ["cur_freq", "min_freq", "max_freq"].iter().zip(hz) {
            self.put(&format!("{folder}/{file}"), format!("{hz}\n"));
        }
        if let Some(load) = load {
            self.put(&format!("{folder}/device/load"), format!("{load}\n"));
        }
    }

    fn bpmp(&self, hz: u64, max: u64) {
        let folder = "sys/kernel/debug/bpmp/debug/clk/emc";
        self.put(&format!("{folder}/rate"), format!("{hz}\n"));
        self.put(&format!("{folder}/min_rate"), "40800000\n");
        self.put(&format!("{folder}/max_rate"), format!("{max}\n"));
    }

    /// Writes a chip under IIO: the name of its folder, and rails with mV, mA, mW and the shunt in milliohm.
    fn iio(&self, chip: &str, device: &str, rails: &[(&str, i64, i64, i64, u32)]) {
        let folder = format!("sys/bus/i2c/devices/{chip}");
        self.put(&format!("{folder}/name"), "ina3221x\n");
        for (n, (name, mv, ma, mw, shunt)) in rails.iter().enumerate() {
            let file = |name: String| format!("{folder}/{device}/{name}");
            self.put(&file(format!("rail_name_{n}")), format!("{name}\n"));
            self.put(&file(format!("in_voltage{n}_input")), format!("{mv}\n"));
            self.put(&file(format!("in_current{n}_input")), format!("{ma}\n"));
            self.put(&file(format!("in_power{n}_input")), format!("{mw}\n"));
            self.put(&file(format!("crit_current_limit_{n}")), "32760 ma\n");
            let cell = format!("{folder}/of_node/channel@{n}/ti,shunt-resistor-mohm");
            self.put(&cell, shunt.to_be_bytes());
        }
    }

    /// Writes a chip under hwmon: rails with mV and mA.
    fn hwmon(&self, chip: &str, number: usize, rails: &[(&str, i64, i64)]) {
        let folder = format!("sys/bus/i2c/devices/{chip}/hwmon/hwmon{number}");
        self.put(&format!("sys/bus/i2c/devices/{chip}/name"), "ina3221\n");
        self.put(&format!("{folder}/name"), "ina3221\n");
        self.put(&format!("{folder}/update_interval"), "30\n");
        for (n, (name, mv, ma)) in (1..).zip(rails) {
            self.put(&format!("{folder}/in{n}_label"), format!("{name}\n"));
            self.put(&format!("{folder}/in{n}_input"), format!("{mv}\n"));
            self.put(&format!("{folder}/curr{n}_input"), format!("{ma}\n"));
            self.put(&format!("{folder}/shunt{n}_resistor"), "5000\n");
            self.put(&format!("{folder}/curr{n}_max_alarm"), "0\n");
            self.put(&format!("{folder}/curr{n}_crit_alarm"), "0\n");
        }
        // Channel 7 has the sums of the other channels: the sum of their shunt voltages, and the sum of their currents.
        self.put(&format!("{folder}/in7_label"), "sum of shunt voltages\n");
        self.put(&format!("{folder}/in7_input"), "40\n");
        self.put(&format!("{folder}/curr7_input"), "9000\n");
        self.link(
            &format!("sys/class/hwmon/hwmon{number}"),
            &format!("../../bus/i2c/devices/{chip}/hwmon/hwmon{number}"),
        );
    }

    /// Writes the counters of over-current events.
    fn events(&self, number: usize, tail: &str, counts: [u32; 3]) {
        let folder = format!("sys/class/hwmon/hwmon{number}");
        self.put(&format!("{folder}/name"), "soctherm_oc\n");
        for (n, count) in (1..).zip(counts) {
            self.put(&format!("{folder}/oc{n}_{tail}"), format!("{count}\n"));
            self.put(&format!("{folder}/oc{n}_throt_en"), "1\n");
        }
    }

    fn jetson(&self, model: &str, compatible: &str, release: &str) {
        self.put("proc/device-tree/model", format!("{model}\0"));
        self.put("proc/device-tree/compatible", compatible);
        self.put("etc/nv_tegra_release", release);
        self.times(2, [1000, 100, 0], 500);
    }

    /// Writes the times of the cores: user, system and stolen ticks, and the ticks of the measured process.
    pub fn times(&self, cores: usize, [user, system, stolen]: [u64; 3], own: u64) {
        let mut stat = format!("cpu  {user:09} 0 {system:09} 90000 700 0 0 {stolen:09} 0 0\n");
        for core in 0..cores {
            stat += &format!("cpu{core} 1 0 1 45000 350 0 0 0 0 0\n");
        }
        self.put("proc/stat", stat + "intr 1 2 3\nctxt 99\n");
        self.process(OWN, "elsa", own);
    }

    /// Writes a process and its busy ticks.
    pub fn process(&self, pid: u32, name: &str, ticks: u64) {
        let line = format!("{pid} ({name}) R 1 1 1 0 -1 0 0 0 0 0 {ticks:09} 0 0 0 20 0 1 0 5\n");
        self.put(&format!("proc/{pid}/stat"), line);
    }
}

const R32: &str = "# R32 (release), REVISION: 7.1, GCID: 29689809, BOARD: t186ref, EABI: aarch64, DATE: x\n";

/// Builds a TX2 on its developer kit, JetPack 4.6.1, mode MAXP_ARM: the Denver cores are off, PMIC-Die reports 100 °C,
/// the fan runs, the first core is idle, and the carrier has rails.
pub fn tx2() -> Tree {
    let tree = Tree::new();
    tree.jetson("quill", "nvidia,p2597-0000+p3310-1000\0nvidia,quill\0nvidia,tegra186\0", R32);
    tree.put("var/lib/nvpmodel/status", "pmode:0003\n");
    tree.put("etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=3 NAME=MAXP_ARM >\n");
    tree.zones(&[
        ("BCPU-therm", 41500),
        ("MCPU-therm", 41500),
        ("GPU-therm", 44000),
        ("PLL-therm", 41000),
        ("Tboard_tegra", 36000),
        ("Tdiode_tegra", 38750),
        ("PMIC-Die", 100_000),
        ("thermal-fan-est", 40900),
    ]);
    tree.cooling(&[("pwm-fan", 3), ("cpu-balanced", 0), ("gpu-balanced", 0)]);
    tree.core(0, true, [345_600, 345_600, 2_035_200]);
    for denver in [1, 2] {
        // A core that is off keeps its files, with stale contents.
        tree.core(denver, false, [115_200, 115_200, 2_035_200]);
    }
    for core in 3..6 {
        tree.core(core, true, [2_035_200, 345_600, 2_035_200]);
    }
    tree.device("15340000.vic", "vic", [1_024_000_000; 3], None);
    tree.device("17000000.gp10b", "gp10b", [1_122_000_000, 114_750_000, 1_122_000_000], Some(420));
    tree.bpmp(1_866_000_000, 1_866_000_000);
    tree.iio(
        "0-0040",
        "iio:device0",
        &[
            ("VDD_SYS_GPU", 19064, 8, 153, 10),
            ("VDD_SYS_SOC", 19064, 16, 306, 10),
            ("VDD_4V0_WIFI", 4788, 0, 0, 10),
        ],
    );
    tree.iio(
        "0-0041",
        "iio_device",
        &[
            ("VDD_IN", 19064, 86, 1649, 10),
            ("VDD_SYS_CPU", 19064, 16, 306, 10),
            ("VDD_SYS_DDR", 19064, 9, 173, 10),
        ],
    );
    // The same folder also appears under its other spelling.
    tree.link("sys/bus/i2c/devices/0-0041/iio:device1", "iio_device");
    let carrier = [("VDD_MUX", 19040, 160, 3046, 20), ("VDD_5V0_IO_SYS", 5008, 100, 500, 5)];
    tree.iio("0-0042", "iio:device2", &carrier);
    tree.iio("0-0043", "iio:device3", &[("VDD_1V8_IO", 1792, 60, 107, 10)]);
    tree
}

/// Builds a Nano, JetPack 4.6.1. Its clocks are fixed, and its memory clock is at another path.
pub fn nano() -> Tree {
    let tree = Tree::new();
    let model = "NVIDIA Jetson Nano Developer Kit";
    tree.jetson(model, "nvidia,p3449-0000-b00+p3448-0000-b00\0nvidia,jetson-nano\0nvidia,tegra210\0", R32);
    tree.put("var/lib/nvpmodel/status", "pmode:0000 fmode:quiet\n");
    tree.put("etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=5W >\n");
    let zones = [("AO-therm", 39000), ("CPU-therm", 33000), ("GPU-therm", 31500), ("PMIC-Die", 100_000)];
    tree.zones(&zones);
    for core in 0..4 {
        tree.core(core, true, [1_479_000; 3]);
    }
    tree.device("57000000.gpu", "gpu", [921_600_000; 3], Some(0));
    tree.put("sys/kernel/debug/tegra_bwmgr/emc_min_rate", "204000000\n");
    tree.put("sys/kernel/debug/tegra_bwmgr/emc_max_rate", "1600000000\n");
    tree.put("sys/kernel/debug/clk/override.emc/clk_rate", "1600000000\n");
    let rails =
        [("POM_5V_IN", 5184, 430, 2229, 5), ("POM_5V_GPU", 5184, 8, 41, 5), ("POM_5V_CPU", 5184, 60, 311, 5)];
    tree.iio("6-0040", "iio:device0", &rails);
    tree
}

/// Builds a TX1, JetPack 4.6.1. It has the chip of the Nano, but another module number. The names of its
/// rails are not confirmed.
pub fn tx1() -> Tree {
    let tree = Tree::new();
    tree.jetson(
        "NVIDIA Jetson TX1 Developer Kit",
        "nvidia,p2371-2180\0nvidia,jetson-tx1\0nvidia,tegra210\0",
        R32,
    );
    tree.zones(&[("AO-therm", 38000), ("CPU-therm", 34000), ("GPU-therm", 33000), ("PMIC-Die", 100_000)]);
    for core in 0..4 {
        tree.core(core, true, [1_734_000, 102_000, 1_734_000]);
    }
    tree.device("57000000.gpu", "gpu", [998_400_000, 76_800_000, 998_400_000], Some(0));
    let rails =
        [("VDD_IN", 19064, 120, 2287, 10), ("VDD_GPU", 19064, 4, 76, 10), ("VDD_CPU", 19064, 10, 190, 10)];
    tree.iio("1-0040", "iio:device0", &rails);
    tree
}

/// Builds an AGX Xavier, JetPack 5.1.1: it has no input rail, its rails are under hwmon, and its counters have their
/// older name.
pub fn xavier() -> Tree {
    let tree = Tree::new();
    let release = "# R35 (release), REVISION: 3.1, GCID: 32790763, BOARD: t186ref, EABI: aarch64, DATE: x\n";
    tree.jetson("Jetson-AGX", "nvidia,p2972-0000\0nvidia,tegra194\0", release);
    tree.put("var/lib/nvpmodel/status", "pmode:0000 fmode:quiet\n");
    tree.put("etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=MAXN >\n");
    tree.zones(&[("CPU-therm", 35000), ("GPU-therm", 33500), ("PMIC-Die", 50000), ("Tboard_tegra", 32000)]);
    for core in 0..8 {
        tree.core(core, true, [2_265_600; 3]);
    }
    tree.device("17000000.gv11b", "gv11b", [1_377_000_000; 3], Some(1000));
    tree.bpmp(2_133_000_000, 2_133_000_000);
    tree.hwmon("1-0040", 2, &[("GPU", 19136, 100), ("CPU", 19136, 40), ("SOC", 19136, 80)]);
    tree.hwmon("1-0041", 3, &[("CV", 19136, 0), ("VDDRQ", 19136, 16), ("SYS5V", 19136, 100)]);
    tree.events(4, "irq_cnt", [0, 0, 7]);
    tree
}

/// Builds an Orin Nano, JetPack 6.2, as a user without root sees it: switched-off sensors, an unconnected channel,
/// a debugfs that the user may not read, and a counter that is about to wrap.
pub fn orin() -> Tree {
    let tree = Tree::new();
    let release = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: x\n";
    let model = "NVIDIA Jetson Orin Nano Developer Kit";
    tree.jetson(model, "nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0", release);
    tree.put("var/lib/nvpmodel/status", "pmode:0002 fmode:cool\n");
    tree.put("etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=15W >\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n");
    tree.zones(&[("cpu-thermal", 46000), ("cv0-thermal", -256_000), ("tj-thermal", 46500)]);
    for (point, kind, millidegrees) in [(0, "active", 40000), (1, "passive", 95000), (2, "critical", 104_500)]
    {
        tree.put(
            &format!("sys/devices/virtual/thermal/thermal_zone2/trip_point_{point}_type"),
            format!("{kind}\n"),
        );
        let file = format!("sys/devices/virtual/thermal/thermal_zone2/trip_point_{point}_temp");
        tree.put(&file, format!("{millidegrees}\n"));
    }
    tree.cooling(&[("pwm-fan", 1), ("cpufreq-cpu0", 0), ("devfreq-17000000.gpu", 0)]);
    for core in 0..6 {
        tree.core(core, true, [1_728_000; 3]);
    }
    tree.device("17000000.gpu", "gpu", [1_020_000_000; 3], Some(990));
    // A link to itself simulates a closed folder, even for tests that run as root.
    tree.link("sys/kernel/debug", "debug");
    tree.hwmon("1-0040", 1, &[("VDD_IN", 4984, 1856), ("VDD_CPU_GPU_CV", 4984, 200), ("VDD_SOC", 4984, 320)]);
    tree.hwmon("1-0041", 2, &[("NC", 4984, 5000), ("VDDQ_VDD2_1V8AO", 4984, 50), ("NC", 0, 0)]);
    tree.events(3, "event_cnt", [0, 2, u32::MAX]);
    tree
}

/// Builds a PC: energy counters that wrap and that count each package in several places, and thermal events of every
/// core.
pub fn pc() -> Tree {
    let tree = Tree::new();
    tree.times(4, [1000, 100, 0], 500);
    tree.zones(&[("acpitz", 27800), ("x86_pkg_temp", 51000)]);
    tree.cooling(&[("Processor", 0), ("intel_powerclamp", -1), ("Fan", 1)]);
    for core in 0..4 {
        tree.core(core, true, [3_800_000, 400_000, 4_200_000]);
        for file in ["core_throttle_count", "package_throttle_count"] {
            tree.put(&format!("sys/devices/system/cpu/cpu{core}/thermal_throttle/{file}"), "12\n");
        }
    }
    let counters = [
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ];
    for (folder, name) in counters {
        tree.put(&format!("sys/class/powercap/{folder}/name"), format!("{name}\n"));
        tree.put(&format!("sys/class/powercap/{folder}/max_energy_range_uj"), "262143328850\n");
        tree.put(&format!("sys/class/powercap/{folder}/energy_uj"), "262143000000\n");
    }
    tree
}

/// Copies the trees of all boards into the folder `ELSA_TREES`, each under the name of its board, for rehearsals with
/// the whole tool.
#[test]
#[ignore = "writes files for the stage board-day"]
fn trees_are_written() {
    let to = std::path::PathBuf::from(std::env::var_os("ELSA_TREES").expect("ELSA_TREES is the folder"));
    for (name, tree) in [
        ("jetson-tx2", tx2()),
        ("jetson-nano", nano()),
        ("jetson-tx1", tx1()),
        ("jetson-xavier", xavier()),
        ("jetson-orin", orin()),
    ] {
        let compatible = tree.root().read("proc/device-tree/compatible").unwrap();
        assert_eq!(elsa_targets::recognised(&compatible), Some(name));
        let copied =
            std::process::Command::new("cp").arg("-a").arg(tree.folder()).arg(to.join(name)).status();
        assert!(copied.unwrap().success(), "{name}");
    }
}
