//! JET (docs/jet.md).
