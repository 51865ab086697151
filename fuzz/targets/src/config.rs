use distlock::{ErrorKind, Registry, config::Config};
use distlock_gateway::GatewayConfig;

use crate::text::{SECRET, is_bounded, keeps_secret};

/// Checks configuration files: the input unchanged, the input after a backend with a password, and
/// the input after a gateway with a key. No error may repeat the password or the key.
pub fn config(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    // The fuzzer can learn the planted secret from this program and write it into the input. Errors
    // may show parts of the input, so such an input would fail the checks without a bug.
    if text.contains(SECRET) {
        return;
    }
    read(text);
    let with_password = format!("[backend]\nurl = \"redis://u:{SECRET}@h\"\n{text}");
    if let Some(config) = read(&with_password) {
        assert!(config.has_secret());
    }
    for table in [
        format!("[records]\nurl = \"redis://u:{SECRET}@h\"\n{text}"),
        format!("[backend]\nurl = \"q:\"\nmembers = [\"a=redis://u:{SECRET}@h\"]\n{text}"),
    ] {
        if let Some(config) = read(&table) {
            assert!(config.has_secret());
        }
    }
    let with_key = format!("[gateway]\nnode = \"n\"\ntoken_key = \"{SECRET}{SECRET}\"\n{text}");
    if let Some(config) = read(&with_key) {
        assert!(config.has_secret());
    }
}

fn read(text: &str) -> Option<Config> {
    let failed = |error: distlock::Error| {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        keeps_secret(&error);
        is_bounded(&error, text.len());
    };
    let config = Config::parse(text, "distlock.toml").map_err(failed).ok()?;
    keeps_secret(format_args!("{config:?}"));
    for target in [config.backend(), config.records()].into_iter().flatten() {
        keeps_secret(target.masked_url());
        if let Err(error) = Registry::builtin().drivers().check(target) {
            keeps_secret(&error);
            is_bounded(&error, text.len());
        }
    }
    match config.gateway::<GatewayConfig>() {
        Ok(Some(gateway)) => {
            keeps_secret(format_args!("{gateway:?}"));
            let _ = gateway.validate().map_err(failed);
        }
        Ok(None) => {}
        Err(error) => failed(error),
    }
    Some(config)
}
