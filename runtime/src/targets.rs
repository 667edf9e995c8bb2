//! Where a call writes: the outputs of a frame as pointers, which the CPU and a GPU may both hold.

use elsa_core::attention::Outputs;
use elsa_core::dtype::ElementsMut;
use std::marker::PhantomData;
use std::ptr;

/// The outputs of a frame. Absent ones are null.
///
/// Invariant *outputs*: once [`Outputs::check`] has accepted them for a problem, every pointer is writable for the
/// elements of its view, or for a single (or `d_v` of them) per row of the problem, and nobody else uses that
/// memory for as long as `'a`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Targets<'a> {
    pub output: *mut u8,
    pub lse: *mut f32,
    pub state_m: *mut f32,
    pub state_s: *mut f32,
    pub state_w: *mut f32,
    pub present_key: *mut u8,
    pub present_value: *mut u8,
    outputs: PhantomData<&'a ()>,
}

impl<'a> Targets<'a> {
    pub fn new(mut outputs: Outputs<'a>) -> Targets<'a> {
        let data = |elements: &mut ElementsMut<'a>| -> *mut u8 {
            match elements {
                ElementsMut::F32(x) => x.as_mut_ptr().cast(),
                ElementsMut::F16(x) => x.as_mut_ptr().cast(),
                ElementsMut::Bf16(x) => x.as_mut_ptr().cast(),
            }
        };
        let singles = |x: Option<&mut [f32]>| x.map_or(ptr::null_mut(), <[f32]>::as_mut_ptr);
        let mut state = outputs.state;
        Targets {
            output: data(&mut outputs.output),
            lse: singles(outputs.lse),
            state_m: singles(state.as_mut().map(|x| &mut *x.m)),
            state_s: singles(state.as_mut().map(|x| &mut *x.s)),
            state_w: singles(state.as_mut().map(|x| &mut *x.w)),
            present_key: outputs.present_key.as_mut().map_or(ptr::null_mut(), data),
            present_value: outputs.present_value.as_mut().map_or(ptr::null_mut(), data),
            outputs: PhantomData,
        }
    }

    /// Whether states are wanted.
    pub fn states(&self) -> bool {
        !self.state_m.is_null()
    }
}
