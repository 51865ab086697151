//! The configuration of a server as a URL: reading and writing.
//!
//! No error shows a part of the URL that may be a password.

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use distlock_backend_kit::{Secret, TLS_DISABLE, percent_decode, percent_encode, unknown_option};
use distlock_core::Result;

use super::{
    product::{Product, SslMode},
    server::{ServerConfig, ServerHost},
    values::{duration, escape, flag, invalid},
};

impl ServerConfig {
    /// Reads a whole URL: `postgres://user:password@host:5432/database?table_prefix=app_`,
    /// `mysql://..`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) that names the problem.
    pub fn from_url(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            invalid("not a URL: it has no scheme, as in postgres://host/database")
        })?;
        let (body, query) = rest.split_once('?').unwrap_or((rest, ""));
        let options = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Ok((decode(name)?, decode(value)?))
            })
            .collect::<Result<Vec<_>>>()?;
        Self::from_url_parts(scheme, body, &options)
    }

    /// Reads the parts of a URL: its scheme, the text between the scheme's colon and the query
    /// (still percent-encoded), and the options, already decoded.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) that names the option, and for an
    /// unknown option the most similar known name;
    /// [`Unsupported`](distlock_core::ErrorKind::Unsupported) when the options demand TLS and this
    /// build contains no TLS.
    pub fn from_url_parts(scheme: &str, body: &str, options: &[(String, String)]) -> Result<Self> {
        let product = Product::of(scheme)
            .ok_or_else(|| invalid(format!("{scheme:?} is no scheme of a database server")))?;
        Self::parse(product, body, options).map_err(|error| error.on(product.name()))
    }

    fn parse(product: Product, body: &str, options: &[(String, String)]) -> Result<Self> {
        let mut config = Self::new(product, "", "");
        config.read_address(body)?;
        config.apply(options)?;
        config.checked()?;
        Ok(config)
    }

    fn read_address(&mut self, body: &str) -> Result<()> {
        let example = self.product.example();
        let rest = body
            .strip_prefix("//")
            .ok_or_else(|| invalid(format!("not a URL of a server, as in {example}")))?;
        // The last `@`, because a password may contain an unescaped `@`.
        let (userinfo, rest) = match rest.rsplit_once('@') {
            Some((userinfo, rest)) => (Some(userinfo), rest),
            None => (None, rest),
        };
        if let Some(userinfo) = userinfo {
            let (user, password) = match userinfo.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (userinfo, None),
            };
            self.user = Some(decode(user)?).filter(|user| !user.is_empty());
            self.password = password.map(decode).transpose()?.map(Secret::new);
        }
        let (address, database) = rest.split_once('/').unwrap_or((rest, ""));
        self.hosts = ServerHost::list(address, self.product.default_port())?;
        self.database = decode(database)?;
        Ok(())
    }

    fn apply(&mut self, options: &[(String, String)]) -> Result<()> {
        let (mut cert, mut key) = (None, None);
        let mut clear = false;
        for (name, value) in options {
            match name.as_str() {
                "connect_timeout" => self.connect_timeout = duration(name, value)?,
                "migrate" => self.migrate = flag(name, value)?,
                "password" => self.password = Some(Secret::new(value.clone())),
                "pool_size" => {
                    self.pool_size = value.parse().map_err(|_| {
                        invalid(format!("option `pool_size`: {value:?} is no number"))
                    })?;
                }
                "reap_after" => self.reap_after = duration(name, value)?,
                "socket" => self.socket = Some(value.into()),
                "statement_timeout" => self.statement_timeout = duration(name, value)?,
                "table_prefix" => self.table_prefix.clone_from(value),
                "tls" if value == TLS_DISABLE => clear = true,
                "tls" => {
                    return Err(invalid(format!(
                        "option `tls`: {value:?} is not `disable`; for TLS set `{}`",
                        self.product.ssl_option()
                    )));
                }
                "user" => self.user = Some(value.clone()),
                name if !self
                    .product
                    .options()
                    .iter()
                    .any(|option| option.name == name) =>
                {
                    return Err(unknown_option(
                        name,
                        self.product.name(),
                        self.product.options(),
                    ));
                }
                "sslmode" | "ssl-mode" => {
                    self.ssl_mode = self.product.ssl_mode(value).ok_or_else(|| {
                        invalid(format!(
                            "option `{name}`: {value:?} is none of {}",
                            self.product.ssl_modes().map(|(name, _)| name).join(", ")
                        ))
                    })?;
                }
                "sslrootcert" | "ssl-ca" => self.ssl_ca = Some(value.into()),
                "sslcert" | "ssl-cert" => cert = Some(PathBuf::from(value)),
                _ => key = Some(PathBuf::from(value)),
            }
        }
        if clear {
            if !matches!(self.ssl_mode, SslMode::Auto | SslMode::Disable) {
                return Err(invalid(format!(
                    "option `tls` is `disable`, and `{}` asks for TLS: leave out one of the two",
                    self.product.ssl_option()
                )));
            }
            self.ssl_mode = SslMode::Disable;
        }
        self.ssl_client = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            _ => {
                return Err(invalid(
                    "a client's certificate needs its key as well, and a key its certificate",
                ));
            }
        };
        Ok(())
    }

    /// The URL of this configuration, without the password, and with `migrate` left out.
    #[must_use]
    pub fn url(&self) -> String {
        let mut url = format!("{}://", self.product.name());
        if let Some(user) = &self.user {
            let _ = write!(url, "{}@", percent_encode(user));
        }
        let hosts = self.hosts.iter();
        let hosts = hosts.map(|host| host.in_url(self.product.default_port()));
        url.push_str(&hosts.collect::<Vec<_>>().join(","));
        let _ = write!(url, "/{}", percent_encode(&self.database));
        let mut separator = '?';
        let mut add = |option: &str, value: &str| {
            let _ = write!(url, "{separator}{option}={value}");
            separator = '&';
        };
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let standard = Self::new(self.product, "", "");
        if self.pool_size != standard.pool_size {
            add("pool_size", &self.pool_size.to_string());
        }
        if self.reap_after != standard.reap_after {
            add("reap_after", &millis(self.reap_after));
        }
        if let Some(socket) = &self.socket {
            add("socket", &escape(socket));
        }
        if self.ssl_mode != standard.ssl_mode {
            let modes = self.product.ssl_modes();
            let named = modes.iter().find(|(_, mode)| *mode == self.ssl_mode);
            add(
                self.product.ssl_option(),
                named.map_or("", |(name, _)| name),
            );
        }
        let [ca, cert, key] = self.product.ssl_files();
        if let Some(path) = &self.ssl_ca {
            add(ca, &escape(path));
        }
        if let Some((certificate, secret)) = &self.ssl_client {
            add(cert, &escape(certificate));
            add(key, &escape(secret));
        }
        if self.connect_timeout != standard.connect_timeout {
            add("connect_timeout", &millis(self.connect_timeout));
        }
        if self.statement_timeout != standard.statement_timeout {
            add("statement_timeout", &millis(self.statement_timeout));
        }
        if self.table_prefix != standard.table_prefix {
            add("table_prefix", &self.table_prefix);
        }
        url
    }
}

fn decode(text: &str) -> Result<String> {
    // The text is not shown: it may be a part of a password.
    percent_decode(text).ok_or_else(|| invalid("a part of the URL is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use distlock_backend_kit::not_compiled_in;
    use distlock_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_is_read_and_written_back_without_its_password() {
        let url = "postgres://bo%40b:hun%2Fter@2@db.local:6543/my%20db\
                   ?pool_size=8&reap_after=2h&table_prefix=app_&sslmode=disable";
        let config = ServerConfig::from_url(url).unwrap();
        assert_eq!(config.user.as_deref(), Some("bo@b"));
        assert_eq!(config.password, Some(Secret::new("hun/ter@2")));
        assert_eq!(config.hosts, [ServerHost::new("db.local", 6543)]);
        assert_eq!(config.database, "my db");
        assert!(!format!("{config:?}").contains("hun"));
        assert_eq!(
            config.url(),
            "postgres://bo%40b@db.local:6543/my%20db\
             ?pool_size=8&reap_after=7200000ms&sslmode=disable&table_prefix=app_"
        );
        let again = ServerConfig::from_url(&config.url()).unwrap();
        let password = config.password.clone();
        assert_eq!(ServerConfig { password, ..again }, config);
    }

    #[test]
    fn options_that_a_url_omits_have_the_documented_defaults() {
        let config = ServerConfig::from_url("mariadb://[::1]/locks?migrate=false").unwrap();
        let mut standard = ServerConfig::new(Product::MySql, "::1", "locks");
        standard.migrate = false;
        assert_eq!(config, standard);
        assert_eq!(config.url(), "mysql://[::1]/locks");
        assert_eq!(config.hosts, [ServerHost::new("::1", 3306)]);
        assert_eq!(config.pool_size, 4);
        let socket = ServerConfig::from_url("postgres:///locks?socket=/run/postgresql").unwrap();
        assert_eq!(socket.socket.as_deref(), Some("/run/postgresql".as_ref()));
    }

    #[test]
    fn a_url_may_name_several_servers() {
        let url = "postgres://bob@h1,h2:6000,[::1]:7000/d";
        let config = ServerConfig::from_url(url).unwrap();
        let hosts = [("h1", 5432), ("h2", 6000), ("::1", 7000)];
        assert_eq!(
            config.hosts,
            hosts.map(|(name, port)| ServerHost::new(name, port))
        );
        assert_eq!(config.url(), url);
        assert_eq!(config.address(), "h1:5432, h2:6000, [::1]:7000");
    }

    #[test]
    fn a_wrong_url_is_refused_with_its_problem() {
        let long = format!("postgres://h/d?table_prefix={}", "p".repeat(33));
        for (url, says) in [
            ("postgres:locks", "not a URL of a server"),
            ("postgres:///d", "names no host"),
            ("postgres://h", "names no database"),
            ("postgres://h:0/d", "no TCP port"),
            ("postgres://h:70000/d", "no TCP port"),
            ("postgres://[hunter2/d", "closing bracket"),
            ("postgres://u:hunter2/d", "no TCP port"),
            ("postgres://u:hunter2:5432/d", "no TCP port"),
            ("postgres://hunter2 x/d", "contains a space"),
            ("postgres://h1,,h2/d", "names no host"),
            ("postgres://,h2/d?socket=/run", "names no host"),
            ("postgres://h1,h2:0/d", "no TCP port"),
            ("postgres://u:hunter2,h/d", "no TCP port"),
            ("postgres://h1,h2/d?socket=/run", "one server"),
            ("postgres://h1,%2Frun/d", "one server"),
            ("postgres://h/d?pool_size=0", "`pool_size`"),
            ("postgres://h/d?pool_size=many", "`pool_size`"),
            ("postgres://h/d?statement_timeout=1h", "`statement_timeout`"),
            ("postgres://h/d?reap_afer=1h", "did you mean `reap_after`?"),
            (
                "postgres://h/d?ssl-mode=REQUIRED",
                "did you mean `sslmode`?",
            ),
            ("postgres://h/d?sslmode=allow", "none of disable, prefer"),
            ("mysql://h/d?ssl-mode=yes", "none of DISABLED, PREFERRED"),
            ("mysql://h/d?tls=true", "for TLS set `ssl-mode`"),
            ("postgres://h/d?tls=disable&sslmode=prefer", "leave out one"),
            ("postgres://h/d?sslrootcert=/ca.pem", "TLS is not asked for"),
            (
                "postgres://h/d?sslmode=require&sslcert=/c.pem",
                "needs its key",
            ),
            ("postgres://h/d?table_prefix=A", "`table_prefix`"),
            ("postgres://h/d?table_prefix=a%3Bdrop", "`table_prefix`"),
            ("postgres://h/a%00b", "contains a NUL"),
            ("oracle://h/d", "no scheme of a database server"),
            (long.as_str(), "`table_prefix`"),
        ] {
            let error = ServerConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(error.to_string().contains(says), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_leaves_this_machine_only_through_tls_unless_tls_is_disabled() {
        for (url, remedy, features) in [
            (
                "mysql://bob:hunter2@db.example/d?ssl-mode=PREFERRED",
                "set `ssl-mode` to REQUIRED",
                "mysql,tls",
            ),
            (
                "postgres://localhost,db.example/d?sslmode=prefer&password=hunter2",
                "set `sslmode` to require",
                "postgres,tls",
            ),
        ] {
            let error = ServerConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            let said = error.to_string();
            for word in ["\"db.example\"", "`tls` to `disable`", remedy] {
                assert!(said.contains(word), "{url}: {said}");
            }
            assert!(!said.contains("hunter2"), "{url}: {said}");
            let add = not_compiled_in("TLS", features);
            assert_eq!(said.contains(&add), !cfg!(feature = "tls"), "{said}");
        }
        for (url, mode) in [
            ("mysql://bob@db.example/d", SslMode::Prefer),
            ("mysql://bob:hunter2@localhost/d", SslMode::Prefer),
            ("mysql://bob:hunter2@127.0.0.9/d", SslMode::Prefer),
            (
                "mysql://bob:hunter2@h/d?socket=/run/my.sock",
                SslMode::Prefer,
            ),
            ("postgres://bob:hunter2@[::1]/d", SslMode::Prefer),
            ("postgres://bob:hunter2@%2Frun/d", SslMode::Prefer),
            (
                "mysql://bob:hunter2@db.example/d?tls=disable",
                SslMode::Disable,
            ),
            (
                "mysql://bob:hunter2@db.example/d?ssl-mode=DISABLED",
                SslMode::Disable,
            ),
            (
                "postgres://bob:hunter2@db.example/d?sslmode=disable&tls=disable",
                SslMode::Disable,
            ),
        ] {
            let config = ServerConfig::from_url(url).unwrap();
            assert_eq!(config.ssl_mode_in_use(), mode, "{url}");
        }
        for scheme in ["mysql", "postgres"] {
            let url = format!("{scheme}://bob:hunter2@db.example/d");
            let config = ServerConfig::from_url(&url);
            if cfg!(feature = "tls") {
                assert_eq!(config.unwrap().ssl_mode_in_use(), SslMode::Require);
            } else {
                let error = config.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
                let add = not_compiled_in("TLS", &format!("{scheme},tls"));
                assert!(error.to_string().contains(&add), "{error}");
            }
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_that_is_not_compiled_in_is_refused() {
        let error = ServerConfig::from_url("postgres://h/d?sslmode=require").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let add = not_compiled_in("TLS", "postgres,tls");
        assert!(error.to_string().contains(&add), "{error}");
    }
}
