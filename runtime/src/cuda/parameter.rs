//! The parameters of kernels, as words.

use elsa_kernels::cuda::attention::{
    AttentionArgs, MathArgs, MeasureArgs, PresentArgs, SplitArgs, StreamArgs, WithinArgs,
};
use elsa_kernels::cuda::linear::{CarryArgs, LinearArgs, SumsArgs};
use elsa_kernels::cuda::series::{ConvolutionArgs, RecurrenceArgs, SelectiveArgs};

/// A parameter of a kernel.
///
/// # Safety
/// - *whole*: a value consists of whole words of eight bytes, and has no padding between or after its fields.
pub unsafe trait Parameter: Copy {}

macro_rules! parameters {
    ($($type:ty)*) => {
        $(
            const _: () = assert!(size_of::<$type>().is_multiple_of(size_of::<u64>()));
            // SAFETY: *whole*: the device twin has the same size, and its fields fill it; a test reads the words of each type.
            unsafe impl Parameter for $type {}
        )*
        #[cfg(test)]
        mod tests {
            use super::*;
            use crate::cuda::launch::Launches;

            /// Under Miri, reading padding is an error.
            #[test]
            fn parameters_consist_of_initialised_words() {
                let mut list = Launches::default();
                $(list.store(&<$type>::default()).unwrap();)*
                assert!(list.words().len() * 8 >= [$(size_of::<$type>()),*].iter().sum());
                assert!(std::hint::black_box(list.words().iter().fold(0, |all, word| all | word)) != u64::MAX);
            }
        }
    };
}

parameters! {
    AttentionArgs MathArgs MeasureArgs PresentArgs SplitArgs StreamArgs WithinArgs
    CarryArgs LinearArgs SumsArgs
    ConvolutionArgs RecurrenceArgs SelectiveArgs
}
