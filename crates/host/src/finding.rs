//! What `weir doctor` found, on a balancer and on a backend.

use serde::Serialize;

/// How a check came out; the words `ok`, `warn` and `FAIL` of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but not as well as it could, or not under all circumstances.
    Warn,
    /// It does not work like this.
    Fail,
}

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check, for example `next-hop`.
    pub check: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found, in one line.
    pub detail: String,
    /// What to do about it, a command where one does it; `None` if all is well.
    pub mend: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, detail: detail.into(), mend: None }
    }

    /// Not as well as it could be.
    pub fn warn(check: &'static str, detail: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, mend: Some(mend.into()), ..Self::ok(check, detail) }
    }

    /// Not at all.
    pub fn fail(check: &'static str, detail: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(check, detail, mend) }
    }
}
