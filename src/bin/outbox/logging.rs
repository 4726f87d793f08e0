//! Logs: on standard error, so that standard output stays the result.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::cli::Global;
use crate::failure::BadUsage;

/// Libraries that tell more at `info` than a person wants to know; a filter that names them wins. `aws_config` is off:
/// of a credential process that fails, it logs what that printed, which can be a secret.
const QUIET: &str =
    "sqlx=warn,aws_config=off,aws_sdk_sqs=warn,aws_smithy_runtime=warn,hyper=warn,hyper_util=warn,rustls=warn";

/// Installs the log of this process.
pub(crate) fn init(global: &Global) -> Result<(), BadUsage> {
    // a set but empty variable is how a compose file says "not set"
    let wanted = if global.log.is_empty() { "info" } else { &global.log };
    let filter = EnvFilter::builder().parse(directives(wanted)).map_err(|error| {
        BadUsage::new(format!(
            "log filter `{wanted}` cannot be read ({error}): write it as `info` or `warn,ordered_outbox=debug`"
        ))
    })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    if global.json {
        log.json().flatten_event(true).init();
    } else {
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        log.with_ansi(colours).init();
    }
    Ok(())
}

fn directives(wanted: &str) -> String {
    // with less than warnings wanted, the libraries' must not stay
    let is_less = ["off", "error"].iter().any(|level| wanted.trim().eq_ignore_ascii_case(level));
    if is_less { wanted.trim().to_owned() } else { format!("{QUIET},{wanted}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_errors_only_gets_no_warnings_of_libraries() {
        for wanted in ["error", "off", " ERROR "] {
            assert_eq!(directives(wanted), wanted.trim());
        }
        for wanted in ["info", "warn", "error,sqlx=debug"] {
            assert_eq!(directives(wanted), format!("{QUIET},{wanted}"));
        }
    }
}
