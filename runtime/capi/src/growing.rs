//! Extensible structs: each begins with its size, which the caller sets.
//!
//! A zero in a field selects the field's default, or means that the tensor is absent. If a program was compiled against
//! an older header, the fields that its structs lack are read as zeros, and are not written. If a program was compiled
//! against a newer header, this library reads the program's structs only if the fields that it does not know are zero. It
//! rejects an output struct that is larger than the one it knows.

use crate::fault::Fault;
use crate::pointer::aligned;
use crate::types::*;
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

/// Largest plausible size of a struct. A larger number means that the caller has not set the size.
const MOST: usize = 4096;

/// Struct of the ABI to which later versions may add fields.
///
/// # Safety
/// The type is `repr(C)`, begins with its size as a `usize`, and has no padding; all zero bytes are a valid value.
pub(crate) unsafe trait Growing: Copy {
    /// Name of the struct in `elsa.h`.
    const NAME: &'static str;
    /// Sizes of the struct in the headers of earlier versions.
    const EARLIER: &'static [usize];
}

/// Lists the structs. If later versions have extended a struct, the first field of each such version follows its name.
macro_rules! growing {
    ($($name:ident $(($($field:ident)+))?)*) => {
        // SAFETY: the struct is declared as the clauses require in `types`; the tests below find no padding.
        $(unsafe impl Growing for $name {
            const NAME: &'static str = stringify!($name);
            const EARLIER: &'static [usize] = &[$($(offset_of!($name, $field)),+)?];
        }

        impl Default for $name {
            /// Sets the size; every other field is zero.
            fn default() -> $name {
                // SAFETY: all zero bytes are a valid value of a `Growing` (clause of the trait).
                let zero: $name = unsafe { MaybeUninit::zeroed().assume_init() };
                $name { size: size_of::<$name>(), ..zero }
            }
        })*
    };
}

growing! {
    elsa_engine_options
    elsa_engine_info
    elsa_plan_options(schedule tensor_cores)
    elsa_plan_info(tensor_cores)
    elsa_problem
    elsa_inputs
    elsa_outputs
    elsa_report
    elsa_certificate
    elsa_certified
    elsa_left_out
    elsa_chunk
    elsa_buffer_info
    elsa_rows
    elsa_stream_options(device_budget sizes)
    elsa_stream_info(device_bytes sizes)
    elsa_stream_data(unit_finished)
    elsa_stream_report
    elsa_task_options
    elsa_task_info
    elsa_task_report
    elsa_task_file
    elsa_task_files
    elsa_task_merged
    elsa_gradients_options
    elsa_gradients_inputs
    elsa_gradients_outputs
    elsa_gradients_shares
    elsa_linear_problem
    elsa_linear_options
    elsa_linear_info
    elsa_linear_inputs
    elsa_linear_outputs
    elsa_linear_certified
    elsa_recurrence_problem
    elsa_selective_problem
    elsa_convolution_problem
    elsa_series_options
    elsa_series_info
    elsa_recurrence_inputs
    elsa_selective_inputs
    elsa_convolution_inputs
    elsa_series_outputs
}

/// Reads the size that the caller has stored in a struct. `pointer` must have passed [`aligned`].
///
/// # Safety
/// The caller keeps the crate's clause *read* for the first field of the struct.
unsafe fn size<T: Growing>(argument: &str, pointer: *const T) -> Result<usize, Fault> {
    // SAFETY: the first field of a `Growing` is its size, a `usize`, and is readable (clause *read*).
    let size = unsafe { pointer.cast::<usize>().read() };
    let (name, known) = (T::NAME, size_of::<T>());
    if (known..=MOST).contains(&size) || T::EARLIER.contains(&size) {
        return Ok(size);
    }
    Err(Fault::argument(format_args!(
        "{argument}.size: {size}; allowed: sizeof({name}), which is {known} here"
    )))
}

fn newer<T: Growing>(argument: &str, size: usize, what: &str) -> Fault {
    let (name, known) = (T::NAME, size_of::<T>());
    Fault::new(
        ELSA_STATUS_UNSUPPORTED,
        &format_args!(
            "{argument}.size: {size}, {what}; allowed: at most {known} bytes of {name}, or a library as new as the header"
        ),
    )
}

/// Copies the fields of the caller's struct that this library knows. Fields that the struct lacks are zero.
///
/// # Safety
/// The caller keeps the crate's clause *read* for the number of bytes that the struct gives as its size.
pub(crate) unsafe fn take<T: Growing>(argument: &str, pointer: *const T) -> Result<T, Fault> {
    aligned(argument, pointer)?;
    // SAFETY: the caller keeps the clause *read*.
    let size = unsafe { size(argument, pointer) }?;
    for at in size_of::<T>()..size {
        // SAFETY: byte `at` is within the size that the struct gives (clause *read*).
        if unsafe { pointer.cast::<u8>().add(at).read() } != 0 {
            return Err(newer::<T>(argument, size, "and a field that this library does not know is set"));
        }
    }
    let mut known = MaybeUninit::<T>::zeroed();
    // SAFETY: the bytes are within the size that the struct gives (clause *read*) and within `T`, and any bytes of a
    // struct followed by zeros are a valid value of a `Growing` (clauses of the trait).
    Ok(unsafe {
        let (from, to) = (pointer.cast::<u8>(), known.as_mut_ptr().cast::<u8>());
        ptr::copy_nonoverlapping(from, to, size.min(size_of::<T>()));
        known.assume_init()
    })
}

/// Returns the bytes of a struct.
pub(crate) fn bytes<T: Growing>(of: &T) -> &[u8] {
    // SAFETY: a `Growing` has no padding (clause of the trait).
    unsafe { std::slice::from_raw_parts(ptr::from_ref(of).cast(), size_of::<T>()) }
}

/// Copies as [`take`] does; a null pointer yields the defaults.
///
/// # Safety
/// The caller keeps the clauses of [`take`].
pub(crate) unsafe fn take_or_default<T: Growing + Default>(
    argument: &str,
    pointer: *const T,
) -> Result<T, Fault> {
    // SAFETY: the caller keeps the clause of this function.
    if pointer.is_null() { Ok(T::default()) } else { unsafe { take(argument, pointer) } }
}

/// Output struct of the caller.
#[derive(Debug)]
pub(crate) struct Room<T: Growing> {
    pointer: *mut T,
    /// Size of the struct: that of `T` or of an earlier version.
    size: usize,
}

impl<T: Growing> Room<T> {
    /// Checks the pointer and the size.
    ///
    /// # Safety
    /// The caller keeps the crate's clause *write* for the number of bytes that the struct gives as its size, until the
    /// returned [`Room`] is dropped.
    pub(crate) unsafe fn new(argument: &str, pointer: *mut T) -> Result<Room<T>, Fault> {
        aligned(argument, pointer)?;
        // SAFETY: the struct is valid for writes and reads (clause *write*).
        let size = unsafe { size(argument, pointer.cast_const()) }?;
        if size > size_of::<T>() {
            return Err(newer::<T>(argument, size, "which this library does not know how to fill"));
        }
        Ok(Room { pointer, size })
    }

    /// Checks as [`Room::new`] does; a null pointer yields `None`.
    ///
    /// # Safety
    /// The caller keeps the clauses of [`Room::new`].
    pub(crate) unsafe fn optional(argument: &str, pointer: *mut T) -> Result<Option<Room<T>>, Fault> {
        // SAFETY: the caller keeps the clause of this function.
        if pointer.is_null() { Ok(None) } else { unsafe { Room::new(argument, pointer) }.map(Some) }
    }

    /// Writes every field that the struct has, except the size, which keeps the caller's value.
    pub(crate) fn fill(self, value: T) {
        let word = size_of::<usize>();
        // SAFETY: `new` has checked that `size` is at most that of `T`, and its clause makes the struct writable.
        unsafe {
            let from = (&raw const value).cast::<u8>().add(word);
            ptr::copy_nonoverlapping(from, self.pointer.cast::<u8>().add(word), self.size - word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_struct_has_padding() {
        let word = size_of::<usize>();
        let (views, inputs) = (8 * size_of::<elsa_view>(), size_of::<elsa_input>());
        let added = 2 * size_of::<elsa_mask>() + size_of::<elsa_table>() + size_of::<elsa_windows>();
        assert_eq!(size_of::<elsa_table>(), 2 * word + 2 * 4);
        assert_eq!(size_of::<elsa_windows>(), 6 * word);
        assert_eq!(size_of::<elsa_engine_options>(), 8 * word + 4 * 4 + 8);
        assert_eq!(size_of::<elsa_engine_info>(), 3 * word + 8 * 4 + ELSA_NAME_BYTES + ELSA_REASON_BYTES);
        assert_eq!(size_of::<elsa_plan_options>(), 3 * word + 10 * 4);
        assert_eq!(size_of::<elsa_plan_info>(), 5 * word + 4 * 4 + ELSA_REASON_BYTES);
        assert_eq!(size_of::<elsa_problem>(), 2 * word + 12 * 4 + 2 * 8 + views + added);
        assert_eq!(size_of::<elsa_inputs>(), 2 * word + 11 * inputs);
        assert_eq!(size_of::<elsa_outputs>(), 2 * word + 7 * inputs);
        assert_eq!(size_of::<elsa_report>(), 4 * word + 2 * 4 + ELSA_REASON_BYTES);
        assert_eq!(size_of::<elsa_certificate>(), 8 * word + 2 * 4 + 2 * 8);
        assert_eq!(size_of::<elsa_certified>(), 4 * word + 2 * 4 + 7 * 8 + ELSA_REASON_BYTES);
        assert_eq!(size_of::<elsa_left_out>(), 3 * word + 9 * 8);
        assert_eq!(size_of::<elsa_chunk>(), 5 * word);
        assert_eq!(size_of::<elsa_buffer_info>(), 4 * word + 2 * 4);
        assert_eq!(size_of::<elsa_rows>(), 12 * word + 2 * 4);
        assert_eq!(size_of::<elsa_stream_options>(), 9 * word + 8 + 2 * 4);
        assert_eq!(size_of::<elsa_stream_info>(), 20 * word + 2 * 4);
        assert_eq!(size_of::<elsa_stream_data>(), 6 * word + 3 * inputs);
        assert_eq!(size_of::<elsa_stream_report>(), 3 * word + 2 * 4 + 8 * 8);
        assert_eq!(size_of::<elsa_task_options>(), 15 * word + 8 + 2 * 4);
        assert_eq!(size_of::<elsa_task_info>(), 6 * word + 2 * 8);
        assert_eq!(size_of::<elsa_task_report>(), 5 * word + 2 * 4 + ELSA_REASON_BYTES);
        assert_eq!(size_of::<elsa_task_file>(), 5 * word);
        assert_eq!(size_of::<elsa_task_files>(), 7 * word + 2 * 4);
        assert_eq!(size_of::<elsa_task_merged>(), 8 * word + 2 * 4);
        assert_eq!(size_of::<elsa_gradients_options>(), 2 * word + 2 * 4);
        assert_eq!(size_of::<elsa_gradients_inputs>(), word + 14 * inputs);
        assert_eq!(size_of::<elsa_gradients_outputs>(), word + 3 * inputs);
        assert_eq!(size_of::<elsa_gradients_shares>(), word + 3 * inputs);
        assert_eq!(size_of::<elsa_linear_problem>(), 2 * word + 14 * 4 + views);
        assert_eq!(size_of::<elsa_linear_options>(), 4 * word + 2 * 4);
        assert_eq!(size_of::<elsa_linear_info>(), 3 * word + 2 * 4);
        assert_eq!(size_of::<elsa_linear_inputs>(), word + 7 * inputs);
        assert_eq!(size_of::<elsa_linear_outputs>(), word + 2 * inputs);
        assert_eq!(size_of::<elsa_linear_certified>(), 2 * word + 2 * 4 + 4 * 8);
        let view = size_of::<elsa_view>();
        assert_eq!(size_of::<elsa_recurrence_problem>(), word + 6 * 4 + 3 * view);
        assert_eq!(size_of::<elsa_selective_problem>(), 2 * word + 8 * 4 + 6 * view);
        assert_eq!(size_of::<elsa_convolution_problem>(), 2 * word + 6 * 4 + 2 * view);
        assert_eq!(size_of::<elsa_series_options>(), 3 * word + 2 * 4);
        assert_eq!(size_of::<elsa_series_info>(), 3 * word + 2 * 4);
        assert_eq!(size_of::<elsa_recurrence_inputs>(), word + 3 * inputs);
        assert_eq!(size_of::<elsa_selective_inputs>(), word + 9 * inputs);
        assert_eq!(size_of::<elsa_convolution_inputs>(), word + 4 * inputs);
        assert_eq!(size_of::<elsa_series_outputs>(), word + 2 * inputs);
    }

    fn chunk(size: usize) -> elsa_chunk {
        elsa_chunk { size, key_offset: 5, key_total: 7, query_offset: 2, query_total: 9 }
    }

    #[test]
    fn a_newer_struct_is_read_where_its_news_are_zero() {
        let known = size_of::<elsa_chunk>();
        let mut longer = [chunk(known + 8), chunk(0)];
        (longer[1].key_offset, longer[1].key_total) = (0, 0);
        // SAFETY: the array of two structs has more bytes than its first size field states.
        let read = unsafe { take("chunk", longer.as_ptr()) }.unwrap();
        assert_eq!((read.key_offset, read.key_total), (5, 7));
        longer[1].size = 1;
        // SAFETY: as above.
        let refused = unsafe { take("chunk", longer.as_ptr()) }.unwrap_err();
        assert_eq!(refused.status, ELSA_STATUS_UNSUPPORTED);
        // SAFETY: as above.
        let refused = unsafe { Room::new("chunk", longer.as_mut_ptr()) }.unwrap_err();
        assert_eq!(refused.status, ELSA_STATUS_UNSUPPORTED);
    }

    /// A struct that two versions have extended by a field each.
    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    struct Extended {
        size: usize,
        first: usize,
        second: usize,
        third: usize,
    }

    growing! { Extended(second third) }

    #[test]
    fn fields_that_an_older_struct_lacks_are_zero_and_are_not_written() {
        let word = size_of::<usize>();
        for (fields, read) in [(1, [5, 0, 0]), (2, [5, 6, 0]), (3, [5, 6, 7])] {
            let size = (1 + fields) * word;
            let mut given = Extended { size, first: 5, second: 6, third: 7 };
            // SAFETY: `given` is a complete struct.
            let taken = unsafe { take("given", &raw const given) }.unwrap();
            assert_eq!([taken.first, taken.second, taken.third], read, "{size}");
            // SAFETY: as above.
            let room = unsafe { Room::new("given", &raw mut given) }.unwrap();
            room.fill(Extended { size: 0, first: 1, second: 2, third: 3 });
            let written = [1, 2, 3].map(|n| if n <= fields { n } else { n + 4 });
            assert_eq!([given.first, given.second, given.third], written, "{size}");
            assert_eq!(given.size, size);
        }
        for size in [word, 2 * word + 1, 3 * word - 4, 3 * word + 4] {
            let given = Extended { size, ..Extended::default() };
            // SAFETY: as above.
            let refused = unsafe { take("given", &raw const given) }.unwrap_err();
            assert_eq!(refused.status, ELSA_STATUS_ARGUMENT, "{size}");
        }
    }

    #[test]
    fn options_of_the_first_header_select_the_exact_schedule() {
        let size = offset_of!(elsa_plan_options, schedule);
        let given = elsa_plan_options { size, block: 128, schedule: 7, ..elsa_plan_options::default() };
        // SAFETY: `given` is a complete struct.
        let taken = unsafe { take("options", &raw const given) }.unwrap();
        assert_eq!((taken.block, taken.schedule), (128, ELSA_SCHEDULE_EXACT));
        assert_eq!(size, 3 * size_of::<usize>() + 4 * 4);
    }

    #[test]
    fn other_sizes_are_refused() {
        for size in [0, 1, size_of::<elsa_chunk>() - 1, MOST + 1, usize::MAX] {
            let mut given = chunk(size);
            // SAFETY: `given` is a complete struct, and nothing beyond it is accessed if its size field is invalid.
            let (read, write) = unsafe { (take("c", &raw const given), Room::new("c", &raw mut given)) };
            assert_eq!(read.unwrap_err().status, ELSA_STATUS_ARGUMENT, "{size}");
            assert_eq!(write.unwrap_err().status, ELSA_STATUS_ARGUMENT, "{size}");
        }
        assert!(size_of::<elsa_problem>() <= MOST);
        assert!(size_of::<elsa_engine_info>() <= MOST);
    }
}
