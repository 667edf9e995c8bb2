//! Prints, in hexadecimal, the bits of three results: the outputs of [`vectors`], the error bounds of [`bounds`] and
//! the stream of [`telemetry`]. Each row is printed in one line.
//!
//! If built for a host, the program writes to standard output. If built for a Cortex-M4F, it writes through semihosting
//! and ends the emulator with a status, so that a fault or a hang is not mistaken for a result. `cargo xtask test
//! --only bare-metal` runs both builds and compares their lines bit by bit.
#![cfg_attr(target_os = "none", no_std, no_main)]

mod bounds;
mod telemetry;
mod vectors;

use elsa_core::profile::InstructionSet;

/// Passes each line of the output to `line`; both builds must print the same lines.
fn print(mut line: impl FnMut(core::fmt::Arguments<'_>)) {
    // The table of a micro-kernel contains every entry point, so requesting one kernel links all of them.
    let kernel = elsa_kernels::registry::attention_for_any(InstructionSet::Scalar);
    if !kernel.is_some_and(|kernel| kernel.is_present()) {
        line(format_args!("scalar kernel absent"));
    }
    let mut words = 0usize;
    vectors::run(|case, what, row| {
        line(format_args!("{case} {what} {:08x}", Bits(row, f32::to_bits)));
        words += row.len();
    });
    bounds::run(|case, what, row| {
        line(format_args!("{case} {what} {:08x}", Bits(row, |word| word)));
        words += row.len();
    });
    telemetry::run(|case, what, row| {
        line(format_args!("{case} {what} {:08x}", Bits(row, |word| word)));
        words += row.len();
    });
    line(format_args!("end {words}"));
}

/// Formats values as hexadecimal numbers with spaces between them. The function returns the bits of a value.
struct Bits<'a, T>(&'a [T], fn(T) -> u32);

impl<T: Copy> core::fmt::LowerHex for Bits<'_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Bits(values, bits) = self;
        for (i, x) in values.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            core::fmt::LowerHex::fmt(&bits(*x), f)?;
        }
        Ok(())
    }
}

#[cfg(not(target_os = "none"))]
fn main() {
    print(|line| println!("{line}"));
}

#[cfg(target_os = "none")]
mod board {
    use cortex_m_semihosting::{debug, hprintln};
    // These crates are linked because they define the critical sections and the panic handler.
    use {cortex_m as _, panic_semihosting as _};

    #[cortex_m_rt::entry]
    fn main() -> ! {
        super::print(|line| hprintln!("{}", line));
        debug::exit(debug::EXIT_SUCCESS);
        loop {
            core::hint::spin_loop();
        }
    }
}
