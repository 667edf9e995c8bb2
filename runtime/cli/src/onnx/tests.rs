//! Tests of the rewriter.
