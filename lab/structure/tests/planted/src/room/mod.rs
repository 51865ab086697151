mod second;
mod third;

pub use self::{second::Second, third::Third};
