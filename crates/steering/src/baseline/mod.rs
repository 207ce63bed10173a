//! What the methods are measured against.
