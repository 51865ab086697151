//! Clients in several languages against the real lock server: one script of steps, which the client
//! of this library passes as well as the Python client, blocking and with asyncio.
//!
//! Each client is a process that carries out orders, one JSON object per line (see `client`). The
//! Python client is built by this test, in a virtual environment of its own.

mod client;
mod python;
mod rust;
mod script;
mod server;

use std::{env, process::ExitCode};

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};

use crate::client::Program;

fn main() -> Result<ExitCode> {
    if env::var_os(rust::DRIVER).is_some() {
        rust::run()?;
        return Ok(ExitCode::SUCCESS);
    }
    let trials = vec![
        trial("the_client_of_this_library_passes", || {
            script::play(&[Program::rust()?])
        }),
        trial("the_python_client_passes", || {
            let python = python::Environment::make()?;
            python.check_vectors()?;
            python.check_types()?;
            script::play(&[python.program("blocking"), python.program("asyncio")])
        }),
    ];
    Ok(libtest_mimic::run(&Arguments::from_args(), trials).exit_code())
}

fn trial(name: &str, check: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, || {
        check().map_err(|error| format!("{error:#}").into())
    })
}
