//! Which conversation a request belongs to.

pub mod configured;
pub mod derived;
pub mod named;

use super::id::{Origin, SessionId};

/// A request's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Where the id comes from.
    pub origin: Origin,
}
