//! The form of a finding: the check, the verdict, and the detail with its remedy.

use distlock_core::Verdict;

pub(super) type Finding = (&'static str, Verdict, String);
