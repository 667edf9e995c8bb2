//! The micro-kernels of linear attention and of the operators beside it.

pub mod series;
