//! Models of protocols. A model is the protocol as a few small steps; its test searches every order
//! in which the steps can happen.
//!
//! Each setting is small, so that the search ends. The protocol has to keep its promises in each of
//! them, and a search must find a promise broken once one rule of the protocol is switched off.
//! A broken promise is printed as the shortest list of steps that leads to it.
//!
//! The package is apart from the lab because it is the only one that needs an optimised build.

#[cfg(test)]
mod quorum;
#[cfg(test)]
mod ring;
#[cfg(test)]
mod search;
#[cfg(test)]
mod shared;
