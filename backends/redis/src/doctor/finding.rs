//! One finding.

use distlock_core::Verdict;

pub(super) type Finding = (&'static str, Verdict, String);
