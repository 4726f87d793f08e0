//! Credentials that expire, are revoked and cannot be loaded, as a credential process gives them to `outbox run`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::eventually;
use crate::{Outbox, QUEUE};

const SECRET: &str = "nobody/may/read/this";

/// Where `outbox run` gets its credentials: a folder of its own.
struct Credentials(PathBuf);

impl Credentials {
    /// A credential process that gives one access key after the other, or none. The SDK renews ten seconds ahead, so each
    /// serves for about two.
    fn of_a_process(outbox: &Outbox) -> Self {
        let folder =
            std::env::temp_dir().join(format!("outbox-credentials-{}-{}", std::process::id(), outbox.sqs.port()));
        fs::create_dir(&folder).unwrap();
        let (script, key) = (folder.join("credentials"), folder.join("key"));
        let text = format!(
            r#"#!/bin/sh
key=$(cat '{key}') || {{ echo 'broken, of {SECRET}' >&2; exit 1; }}
until=$(date -u -d '+12 seconds' +%Y-%m-%dT%H:%M:%SZ 2>/dev/null || date -u -v+12S +%Y-%m-%dT%H:%M:%SZ)
echo "{{\"Version\": 1, \"AccessKeyId\": \"$key\", \"SecretAccessKey\": \"{SECRET}\", \"Expiration\": \"$until\"}}"
"#,
            key = key.display()
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(folder.join("config"), format!("[default]\ncredential_process = {}\n", script.display())).unwrap();
        Self(folder)
    }

    fn gives(&self, key: &str) {
        // at once: the process may be reading
        fs::write(self.0.join("next"), key).unwrap();
        fs::rename(self.0.join("next"), self.0.join("key")).unwrap();
    }

    /// Static keys in a file, as somebody replaces them from time to time.
    fn of_a_file(outbox: &Outbox) -> Self {
        let credentials = Self::of_a_process(outbox);
        fs::write(credentials.0.join("config"), "").unwrap();
        credentials
    }

    fn holds(&self, key: &str) {
        let text = format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n");
        // at once: the process may be reading
        fs::write(self.0.join("next"), text).unwrap();
        fs::rename(self.0.join("next"), self.0.join("file")).unwrap();
    }

    fn breaks(&self) {
        fs::remove_file(self.0.join("key")).unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap()
    }

    fn run(&self, outbox: &Outbox) -> Child {
        Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(["run", "--queue-url", &outbox.sqs.url(QUEUE), "--source", "test", "--poll-interval", "50ms"])
            .args(["--breaker-base", "50ms", "--breaker-cap", "300ms"])
            .env("DATABASE_URL", outbox.database.url())
            .env("AWS_ENDPOINT_URL", outbox.sqs.endpoint())
            .env("AWS_CONFIG_FILE", self.0.join("config"))
            .env("AWS_SHARED_CREDENTIALS_FILE", self.0.join("file"))
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("AWS_REGION", "eu-central-1")
            .env_remove("AWS_PROFILE")
            .env_remove("AWS_ACCESS_KEY_ID")
            .env_remove("AWS_SECRET_ACCESS_KEY")
            .env_remove("AWS_SESSION_TOKEN")
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.0.join("log")).unwrap())
            .spawn()
            .unwrap()
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        // what is left lies in the folder for temporary files
        let _removed = fs::remove_dir_all(&self.0);
    }
}

async fn end(mut dispatcher: Child) {
    assert!(Command::new("kill").args(["-TERM", &dispatcher.id().to_string()]).status().unwrap().success());
    let ended = tokio::task::spawn_blocking(move || dispatcher.wait().unwrap()).await.unwrap();
    assert!(ended.success());
}

// C21 (P7)
#[tokio::test]
async fn credentials_that_expire_are_renewed_in_mid_run_and_a_broken_provider_heals_without_a_restart() {
    let outbox = Outbox::new().await;
    let credentials = Credentials::of_a_process(&outbox);
    credentials.gives("FIRST");
    outbox.sqs.trust_only(&["FIRST"], "ExpiredToken");
    outbox.seed(20, 2).await;
    let dispatcher = credentials.run(&outbox);
    eventually("sent with the first", || outbox.all_done()).await;

    credentials.gives("SECOND");
    outbox.sqs.trust_only(&["SECOND"], "ExpiredToken");
    outbox.seed(20, 2).await;
    eventually("sent with the second", || outbox.all_done()).await;

    credentials.breaks();
    outbox.sqs.trust_only(&["THIRD"], "ExpiredToken");
    outbox.seed(20, 2).await;
    eventually("none can be loaded for many probes", || async {
        credentials.log().matches("AWS credentials could not be loaded").count() >= 20
    })
    .await;
    // by hand for as long as somebody likes; what is decided is decided by then
    let longer = std::env::var("BROKEN_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    tokio::time::sleep(std::time::Duration::from_secs(longer)).await;
    assert!(!outbox.all_done().await);
    credentials.gives("THIRD");
    eventually("sent with the third", || outbox.all_done()).await;

    end(dispatcher).await;
    outbox.assert_untouched_by_it().await;
    let log = credentials.log();
    assert!(log.contains("its breaker is closed") && !log.contains(SECRET), "{log}");
}

// C21 (P7)
#[tokio::test]
async fn keys_that_are_replaced_in_a_credentials_file_are_read_afresh_without_a_restart() {
    let outbox = Outbox::new().await;
    let file = Credentials::of_a_file(&outbox);
    file.holds("FIRST");
    outbox.sqs.trust_only(&["FIRST"], "InvalidClientTokenId");
    outbox.seed(20, 2).await;
    let dispatcher = file.run(&outbox);
    eventually("sent with the first", || outbox.all_done()).await;

    outbox.sqs.trust_only(&["SECOND"], "InvalidClientTokenId");
    outbox.seed(20, 2).await;
    eventually("the first is refused", || async { file.log().contains("InvalidClientTokenId") }).await;
    assert!(!outbox.all_done().await);
    file.holds("SECOND");
    eventually("sent with the second", || outbox.all_done()).await;
    end(dispatcher).await;
    outbox.assert_untouched_by_it().await;
    assert!(!file.log().contains(SECRET), "{}", file.log());
}
