//! What the program takes of a switch.
