//! The settings of a gateway node. Variables override the configuration file, and flags override
//! variables.

use clap::{Arg, ArgMatches, Args, FromArgMatches, parser::ValueSource};
use distlock::{Error, config::Config};
use distlock_gateway::GatewayConfig;

use crate::{
    context::{Context, nearest_variable},
    exit::{Failure, Outcome, code},
    output,
};

/// The settings, and the place where each was given.
pub(super) struct Settings<'a> {
    pub(super) config: GatewayConfig,
    file: &'a Config,
    /// Keys that a flag or a variable has overridden, with the name of the flag or variable.
    overridden: Vec<(&'static str, String)>,
}

impl<'a> Settings<'a> {
    /// Reads the `[gateway]` table, and from variables the secrets and the way to the admin HTTP.
    pub(super) fn read(context: &'a Context) -> Outcome<Self> {
        let file = context.config()?;
        let mut settings = Self {
            config: file.gateway()?.unwrap_or_default(),
            file,
            overridden: Vec::new(),
        };
        for key in SECRETS.into_iter().chain(ADMIN_ADDRESS) {
            let variable = variable_of(key);
            let Some(value) = std::env::var_os(&variable).filter(|value| !value.is_empty()) else {
                continue;
            };
            let value = value
                .into_string()
                .map_err(|_| Failure::new(code::CONFIG, format!("{variable} is not UTF-8")))?;
            settings.set(key, &value, &variable)?;
        }
        Ok(settings)
    }

    /// Overrides settings by those of flags and variables, and validates all of them.
    pub(super) fn apply_flags(&mut self, flags: &Flags) -> Outcome<()> {
        for (key, value, place) in &flags.given {
            self.set(key, value, place)?;
        }
        self.config
            .validate()
            .map_err(|error| self.with_origin(error))?;
        Ok(())
    }

    /// Sets one key, and stores the place where its value was given.
    fn set(&mut self, key: &'static str, value: &str, place: &str) -> Outcome<()> {
        self.overridden.push((key, place.to_owned()));
        let done = self.config.set(key, value);
        Ok(done.map_err(|error| self.with_origin(error))?)
    }

    /// Adds to an error the place where its key was given.
    pub(super) fn with_origin(&self, error: Error) -> Error {
        let Some(key) = error.setting() else {
            return error;
        };
        let mut overridden = self.overridden.iter().rev();
        let place = match overridden.find(|(overridden, _)| *overridden == key) {
            Some((_, place)) => place.clone(),
            None => match self.file.gateway_origin(key) {
                Some(origin) => origin.to_string(),
                None => return error,
            },
        };
        Error::new(error.kind(), format!("{place}: {error}"))
    }
}

/// The bearer token of the admin HTTP, from the environment or the configuration file.
pub(super) fn admin_token(context: &Context) -> Outcome<Option<String>> {
    let settings = Settings::read(context)?;
    let token = settings.config.admin_bearer();
    let token = token.map_err(|error| settings.with_origin(error))?;
    Ok(token.map(str::to_owned))
}

/// Warns of a misspelled variable: the setting would otherwise keep its default value without any
/// message.
pub(super) fn warn_about_unknown_variables() {
    let known: Vec<_> = GatewayConfig::KEYS
        .iter()
        .map(|(key, _)| variable_of(key))
        .chain(["DISTLOCK_GATEWAY_ADMIN".to_owned()])
        .collect();
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("DISTLOCK_GATEWAY_") && !known.iter().any(|known| *known == name) {
            let known: Vec<_> = known.iter().map(String::as_str).collect();
            let near = nearest_variable(&name, &known);
            let near = near.map(|near| format!(": did you mean {near}?"));
            output::print_message(format_args!(
                "warning: {} means nothing here{}",
                name.escape_debug(),
                near.unwrap_or_default()
            ));
        }
    }
}

/// Keys without a flag, because every user of the host can read the arguments of a process.
const SECRETS: [&str; 11] = [
    "token_key",
    "token_key_also",
    "admin_token",
    "send_token",
    "login_jwks_url",
    "profile_url",
    "profile_token",
    "may_send_url",
    "may_send_token",
    "save_url",
    "save_token",
];

/// Keys by which the commands for administrators find the node of this configuration.
const ADMIN_ADDRESS: [&str; 2] = ["admin_listen", "tls_cert"];

/// The environment variable for a key.
fn variable_of(key: &str) -> String {
    format!("DISTLOCK_GATEWAY_{}", key.to_uppercase())
}

/// A flag and a variable for each key of the `[gateway]` table. The gateway itself lists the keys.
#[derive(Debug, Default)]
pub(super) struct Flags {
    /// Key, value, and the flag or variable.
    given: Vec<(&'static str, String, String)>,
}

impl Args for Flags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flags = GatewayConfig::KEYS
            .iter()
            .filter(|(key, _)| !SECRETS.contains(key))
            .map(|(key, help)| {
                let default = GatewayConfig::default_of(key);
                let default = default.map(|default| format!(" [default: {default}]"));
                let flag = Arg::new(*key)
                    .long(key.replace('_', "-"))
                    .env(variable_of(key))
                    .hide_env_values(true)
                    .value_name("VALUE")
                    .help(format!("{help}{}", default.unwrap_or_default()));
                if GatewayConfig::SWITCHES.contains(key) {
                    return flag
                        .value_name("true|false")
                        .num_args(0..=1)
                        .require_equals(true)
                        .default_missing_value("true");
                }
                flag
            });
        command.args(flags)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given = GatewayConfig::KEYS
            .iter()
            .filter(|(key, _)| !SECRETS.contains(key))
            .filter_map(|(key, _)| {
                let value = matches.get_one::<String>(key)?;
                let place = match matches.value_source(key) {
                    // An empty variable counts as unset, as everywhere in this tool.
                    Some(ValueSource::EnvVariable) if value.is_empty() => return None,
                    Some(ValueSource::EnvVariable) => variable_of(key),
                    _ => format!("--{}", key.replace('_', "-")),
                };
                Some((*key, value.clone(), place))
            })
            .collect();
        Ok(())
    }
}
