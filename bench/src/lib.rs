//! What the benchmarks share: the load, plain Redis loops, and Artel as its users use it.

pub mod load;
pub mod member;
pub mod raw;
