//! The parameters of kernels, as words.

/// A parameter of a kernel.
///
/// # Safety
/// - *whole*: a value consists of whole words of eight bytes, and has no padding between or after its fields.
pub unsafe trait Parameter: Copy {}

/// States that types are parameters, and tests it: under Miri, reading padding is an error.
macro_rules! parameters {
    ($($type:ty),*) => {
        $(
            const _: () = assert!(size_of::<$type>().is_multiple_of(size_of::<u64>()));
            // SAFETY: *whole*: the device twin has the same size, and its fields fill it.
            unsafe impl $crate::cuda::parameter::Parameter for $type {}
        )*
        #[cfg(test)]
        #[test]
        fn parameters_consist_of_initialised_words() {
            let mut list = $crate::cuda::launch::Launches::default();
            $(list.store(&<$type>::default()).unwrap();)*
            let bytes: usize = [$(size_of::<$type>()),*].iter().sum();
            assert!(list.words().len() * size_of::<u64>() >= bytes);
            assert!(std::hint::black_box(list.words().iter().fold(0, |all, word| all | word)) != u64::MAX);
        }
    };
}
pub(crate) use parameters;
