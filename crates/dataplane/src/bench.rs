//! The bench programs.
