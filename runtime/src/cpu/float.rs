//! Sets the floating-point environment of a thread: rounding, flush-to-zero, traps and flags.
//!
//! The program that calls the library may have changed the environment of its thread: audio and game engines flush
//! subnormal numbers to zero, interval libraries round upwards, robots trap on invalid operations. New threads inherit
//! the environment of their creator. Without precautions, one call could return different bits on different threads, or
//! raise a signal. So all arithmetic runs in the default environment ([`in_default`]), and afterwards the previous
//! environment is restored, including its flags.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod registers {
    use std::arch::asm;

    /// Control bits and flags of the thread's floating-point registers.
    pub type Environment = (u64, u64);

    /// Environment that rounds to nearest and preserves subnormal numbers. It has no traps, and no flags are set.
    pub const DEFAULT: Environment = (0x1f80, 0);

    /// Flag bits of MXCSR; its other bits are control bits.
    const FLAGS: u32 = 0x3f;

    pub fn read() -> Environment {
        let mut x = 0u32;
        // SAFETY: SSE is part of x86-64; the instruction writes four bytes to `x`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut x, options(nostack, preserves_flags)) };
        (u64::from(x & !FLAGS), u64::from(x & FLAGS))
    }

    pub fn write(to: Environment) {
        let x = (to.0 | to.1) as u32;
        // SAFETY: SSE is part of x86-64; the instruction reads four bytes, whose reserved bits were read from the
        // register or are zero.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const x, options(nostack, preserves_flags, readonly)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod registers {
    use std::arch::asm;

    /// Control bits and flags of the thread's floating-point registers.
    pub type Environment = (u64, u64);

    /// Environment that rounds to nearest and preserves subnormal numbers. It has no traps, and no flags are set.
    pub const DEFAULT: Environment = (0, 0);

    pub fn read() -> Environment {
        let (control, status): (u64, u64);
        // SAFETY: both registers can be read at every privilege level.
        unsafe {
            asm!("mrs {}, fpcr", "mrs {}, fpsr", out(reg) control, out(reg) status, options(nomem, nostack, preserves_flags));
        }
        (control, status)
    }

    pub fn write(to: Environment) {
        // SAFETY: both registers can be written at every privilege level, and receive values read from them or zero.
        unsafe {
            asm!("msr fpcr, {}", "msr fpsr, {}", in(reg) to.0, in(reg) to.1, options(nomem, nostack, preserves_flags));
        }
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod registers {
    /// Stand-in for a processor whose registers are unknown and left unchanged.
    pub type Environment = ();

    pub const DEFAULT: Environment = ();

    pub fn read() -> Environment {}

    pub fn write((): Environment) {}
}

/// Restores the environment when it is dropped, including after a panic.
struct Restore(registers::Environment);

impl Drop for Restore {
    fn drop(&mut self) {
        registers::write(self.0);
    }
}

/// Calls `f` in the default floating-point environment of the processor: rounding to nearest, subnormal numbers
/// preserved, no traps. Then restores the thread's previous environment, including its flags.
pub fn in_default<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(registers::read());
    registers::write(registers::DEFAULT);
    call(f)
}

/// Sets the default environment for this thread until it ends.
pub fn set_default() {
    registers::write(registers::DEFAULT);
}

/// Calls `f` out of line, so that the compiler cannot move arithmetic of `f` before the registers are changed.
#[inline(never)]
fn call<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(all(test, not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;
    use crate::cpu::place::Placement;
    use crate::cpu::pool::Pool;
    use crate::cpu::spin::Spin;
    use std::hint::black_box;
    use std::sync::Mutex;

    /// An environment that flushes subnormal operands and results to zero, and rounds results upwards.
    #[cfg(target_arch = "x86_64")]
    const HOSTILE: registers::Environment = (0x1f80 | 1 << 15 | 1 << 6 | 0b10 << 13, 1);
    #[cfg(target_arch = "aarch64")]
    const HOSTILE: registers::Environment = (1 << 24 | 0b01 << 22, 1);

    /// Returns the bits of a subnormal product and of a rounded sum. These bits depend on the environment.
    fn bits() -> [u32; 2] {
        [black_box(1e-30f32) * black_box(1e-10), black_box(1.0f32) + black_box(1e-9)].map(f32::to_bits)
    }

    #[test]
    fn calls_compute_in_the_default_environment_and_restore_the_callers() {
        let expected = bits();
        let before = registers::read();
        registers::write(HOSTILE);
        let hostile = bits();
        let inside = in_default(bits);
        let nested =
            std::panic::catch_unwind(|| in_default(|| panic!("with the caller's environment changed")));
        let after = registers::read();
        registers::write(before);
        assert_ne!(hostile[0], expected[0], "flush-to-zero has no effect");
        assert_ne!(hostile[1], expected[1], "rounding upwards has no effect");
        assert_eq!(inside, expected);
        assert!(nested.is_err());
        assert!(after.0 == HOSTILE.0 && after.1 & 1 == 1);
    }

    #[test]
    fn a_pool_made_and_called_by_a_hostile_thread_computes_as_any_other() {
        let expected = bits();
        let before = registers::read();
        registers::write(HOSTILE);
        let pool = Pool::standing(3, Spin::default(), &Placement::default()).unwrap();
        let seen = Mutex::new(Vec::new());
        let ran = pool.run(3, &|_| seen.lock().unwrap().push(bits()));
        registers::write(before);
        assert_eq!(ran, Ok(()));
        assert_eq!(seen.into_inner().unwrap(), [expected; 3]);
    }
}
