pub use crate::{alias_one::*, alias_two::Door, glob_one::*, glob_two::*};
