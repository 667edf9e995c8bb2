//! The error bound of a schedule.
//!
//! This is the room of a rigorous bound: one that covers dot product, exponential, accumulation and merge
//! tree as they are executed, relative to `Σ p_j |v_j|`. Nothing here claims one yet. What is published, and
//! what it leaves out, is in [`crate::certificate`].
