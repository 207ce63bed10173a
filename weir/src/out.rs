//! What commands print: the one place that writes to the standard output and the error output.
//!
//! A reader who goes away (`weir status | head -3`) has seen enough: the command ends at once,
//! without a word, with the status that a shell shows for a program that SIGPIPE has ended. The
//! signal itself stays ignored, because connections to backends and to an instance may end too.
//! An output that takes no more, as on a full disk, or is none (`>&-`), ends the command with a message and status 1;
//! but what has changed something, or written a file, has done what it was asked for, and says both.
//! Ending here drops nothing: what a command made in the kernel is gone before it prints.

use serde::Serialize;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process;
use weir_control::doctor::{self, Finding};
use weir_control::stdio;

/// The status of a command whose reader has gone: 128 + SIGPIPE.
pub const READER_GONE: i32 = 141;

/// The same of a command that ends by itself.
const READER_GONE_CODE: u8 = READER_GONE as u8;

/// The status of a command line that makes no sense, as the parser has it.
const SENSELESS: u8 = 2;

/// Prints what the parser of the command line has to say: help or the version to the standard output, what is wrong to
/// the error output. Returns the status to end with.
pub fn parsed(said: &clap::Error) -> u8 {
    if said.use_stderr() {
        // Nobody to read it is no reason to end otherwise.
        let _ = said.print();
        return SENSELESS;
    }
    match is_open().and_then(|()| said.print()).and_then(|()| io::stdout().flush()) {
        Ok(()) => 0,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => READER_GONE_CODE,
        Err(error) => {
            complain(format_args!("standard output: {error}"));
            1
        }
    }
}

/// Prints a text as it is.
pub fn text(text: impl Display) {
    write(format_args!("{text}"));
}

/// Prints a text and ends the line.
pub fn line(text: impl Display) {
    write(format_args!("{text}\n"));
}

/// Prints what was changed, which is so whether the output takes it or not: `done` says it where it does not.
pub fn changed(text: impl Display, done: &str) {
    match put(format_args!("{text}\n")) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(READER_GONE),
        Err(error) => {
            complain(format_args!("standard output: {error}; it is done all the same: {done}"));
        }
        Ok(()) => {}
    }
}

/// Prints a value as JSON.
///
/// # Errors
///
/// A value that JSON cannot hold.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints a value as JSON, in one line.
///
/// # Errors
///
/// A value that JSON cannot hold.
pub fn compact_json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string(value)?);
    Ok(())
}

/// Prints a report: as JSON, or in words.
///
/// # Errors
///
/// A value that JSON cannot hold.
pub fn report<W: Display>(
    report: &impl Serialize,
    json: bool,
    words: impl FnOnce() -> W,
) -> anyhow::Result<()> {
    if json {
        return self::json(report);
    }
    text(words());
    Ok(())
}

/// Prints what a doctor has found. Returns whether nothing failed.
///
/// # Errors
///
/// None: all findings can be JSON.
pub fn findings(findings: &[Finding], json: bool) -> anyhow::Result<bool> {
    report(&findings, json, || doctor::render(findings))?;
    Ok(doctor::passed(findings))
}

/// Says something on the error output. Nobody to read it is no reason to stop.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Says on the error output why the command failed.
pub fn complain(error: impl Display) {
    note(format_args!("weir: {error}"));
}

/// An error with its causes. Many errors name their cause themselves; it is not said twice.
pub fn causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

fn write(text: std::fmt::Arguments<'_>) {
    if let Err(error) = put(text) {
        if error.kind() != ErrorKind::BrokenPipe {
            complain(format_args!("standard output: {error}"));
        }
        process::exit(status(&error));
    }
}

fn put(text: std::fmt::Arguments<'_>) -> io::Result<()> {
    is_open()?;
    let mut out = io::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush())
}

fn is_open() -> io::Result<()> {
    match stdio::stdout_was_closed() {
        true => Err(io::Error::other("it is closed")),
        false => Ok(()),
    }
}

fn status(error: &io::Error) -> i32 {
    if error.kind() == ErrorKind::BrokenPipe { READER_GONE } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[derive(Debug, thiserror::Error)]
    #[error("opening x: {source}")]
    struct Telling {
        source: io::Error,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("opening x: {source}; is it there?")]
    struct Asking {
        source: io::Error,
    }

    #[test]
    fn a_cause_is_said_once() {
        let cause = || io::Error::other("no such thing");
        let telling = anyhow::Error::new(Telling { source: cause() }).context("starting");
        assert_eq!(causes(&telling), "starting: opening x: no such thing");
        let asking = anyhow::Error::new(Asking { source: cause() });
        assert_eq!(causes(&asking), "opening x: no such thing; is it there?");
        let silent = Err::<(), _>(cause()).context("opening x").context("starting").unwrap_err();
        assert_eq!(causes(&silent), "starting: opening x: no such thing");
    }
}
