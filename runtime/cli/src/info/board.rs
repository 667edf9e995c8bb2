//! Formats the description of the board as lines of text.

use crate::error::one_line;
use elsa_board::{Description, Reading};
use std::io::{self, Write};

/// Writes the name of the machine, and the versions of its system software and GPU driver.
///
/// # Errors
/// Returns an error if the output cannot be written.
pub fn identity(out: &mut impl Write, machine: &Description) -> io::Result<()> {
    if let Some(board) = &machine.board {
        writeln!(out, "board     {}", one_line(board))?;
    }
    if let Some(target) = machine.target {
        writeln!(out, "target    {target}")?;
    }
    if let Some(l4t) = &machine.l4t {
        let jetpack = machine.jetpack.map(|jetpack| format!(", JetPack {jetpack}")).unwrap_or_default();
        writeln!(out, "l4t       {l4t}{jetpack}")?;
    }
    if let Some(driver) = &machine.driver {
        writeln!(out, "driver    {}", one_line(driver))?;
    }
    if machine.emulated {
        writeln!(out, "emulated  yes: its times say nothing about a board")?;
    }
    Ok(())
}

/// Writes power mode, clocks, temperatures and power, or the reason why the machine does not report them.
///
/// # Errors
/// Returns an error if the output cannot be written.
pub fn state(out: &mut impl Write, machine: &Description) -> io::Result<()> {
    if let Some(mode) = &machine.power_mode {
        writeln!(out, "mode      {}", one_line(&mode.to_string()))?;
    }
    if let Some(fixed) = machine.jetson_clocks {
        let state = if fixed { "fixed at their highest" } else { "not fixed: sudo jetson_clocks" };
        writeln!(out, "clocks    {state}")?;
    }
    for clock in machine.cores.iter().chain(&machine.gpu).chain(&machine.emc) {
        writeln!(out, "clock     {:<8}{}", one_line(&clock.name), one_line(&clocks(clock)))?;
    }
    if !machine.cores_off.is_empty() {
        writeln!(out, "off       {}", one_line(&machine.cores_off.join(", ")))?;
    }
    for zone in &machine.zones {
        let celsius = zone.temp_c.map_or("off".to_owned(), |celsius| format!("{celsius:.1} °C"));
        writeln!(out, "zone      {:<18}{celsius}", one_line(&zone.name))?;
    }
    for rail in &machine.rails {
        let power = rail.power_mw.map_or("unknown".to_owned(), |mw| format!("{mw:.0} mW"));
        let total = if rail.total { ", counted" } else { "" };
        writeln!(out, "rail      {:<18}{power}, {}{total}", one_line(&rail.name), one_line(&rail.chip))?;
    }
    if !machine.total.is_empty() {
        writeln!(out, "power     {}", one_line(&machine.total.join(" + ")))?;
    }
    for note in &machine.notes {
        writeln!(out, "note      {}", one_line(note))?;
    }
    Ok(())
}

/// Formats a clock, its limits and its governor.
fn clocks(clock: &Reading) -> String {
    let mhz = |mhz: Option<f64>| mhz.map_or("unknown".to_owned(), |mhz| format!("{mhz:.0}"));
    let governor = clock.governor.as_ref().map(|governor| format!(", {governor}")).unwrap_or_default();
    format!("{} MHz, {} to {}{governor}", mhz(clock.mhz), mhz(clock.min_mhz), mhz(clock.max_mhz))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_board::Root;

    #[test]
    fn what_a_board_tells_is_printed_on_a_line_each() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("proc/device-tree/model", "Board\u{1b}[31m\0"),
            ("etc/nv_tegra_release", "# R32 (release), REVISION: 7.1, GCID: 1\n"),
            ("var/lib/nvpmodel/status", "pmode:0000\n"),
            ("sys/class/thermal/thermal_zone0/type", "GPU-therm\n"),
            ("sys/class/thermal/thermal_zone0/temp", "44500\n"),
            ("sys/class/thermal/thermal_zone1/type", "CV-therm\n"),
            ("sys/class/thermal/thermal_zone1/temp", "-256000\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1200000\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "2000000\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq", "345600\n"),
            ("sys/devices/system/cpu/cpu1/online", "0\n"),
            ("sys/bus/i2c/devices/0-0041/name", "ina3221x\n"),
            ("sys/bus/i2c/devices/0-0041/iio_device/rail_name_0", "VDD_IN\n"),
            ("sys/bus/i2c/devices/0-0041/iio_device/in_power0_input", "1649\n"),
        ];
        for (file, contents) in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, contents).unwrap();
        }
        let machine = elsa_board::describe(&Root::new(folder.path()));
        let mut out = Vec::new();
        identity(&mut out, &machine).unwrap();
        state(&mut out, &machine).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let expected = [
            "board     Board\\u001b[31m",
            "l4t       32.7.1, JetPack 4.6.1",
            "mode      0",
            "clocks    not fixed: sudo jetson_clocks",
            "clock     cpu0    1200 MHz, 346 to 2000",
            "off       cpu1",
            "zone      GPU-therm         44.5 °C",
            "zone      CV-therm          off",
            "rail      VDD_IN            1649 mW, 0-0041, counted",
            "power     VDD_IN",
            "note      memory clock: in none of the places that are known",
            "note      throttling: unknown; the system counts no events",
        ];
        assert_eq!(lines, expected);
    }
}
