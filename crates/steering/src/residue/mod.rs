//! residue (docs/residue.md).
