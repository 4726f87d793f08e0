//! What an SQS queue URL says by itself, before anyone is asked.

/// A URL that could name a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueUrl<'a> {
    host: &'a str,
    path: &'a str,
}

impl<'a> QueueUrl<'a> {
    /// Takes a URL apart. The error says what is wrong, as the end of a sentence.
    pub(crate) fn parse(url: &'a str) -> Result<Self, &'static str> {
        let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else {
            return Err("does not begin with https:// or http://");
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = authority.split_once(':').map_or(authority, |(host, _)| host);
        let (account, name) = path.rsplit_once('/').unwrap_or_default();
        if !url.bytes().all(|b| b.is_ascii_graphic()) {
            Err("holds a space or a character outside ASCII")
        } else if rest.contains('@') {
            Err("holds a user name or password")
        } else if path.contains(['?', '#']) {
            Err("holds a query or a fragment")
        } else if host.is_empty() {
            Err("names no host")
        } else if account.is_empty() || name.is_empty() {
            Err("names no account and queue")
        } else {
            Ok(Self { host, path })
        }
    }

    /// Whether the name is one that only a FIFO queue can have, and every FIFO queue has.
    pub(crate) fn is_fifo(self) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, suffix)| suffix == "fifo")
    }

    /// The region the URL names, if it names one.
    pub(crate) fn region(self) -> Option<&'a str> {
        let mut path = self.path.split('/');
        if path.next() == Some("queue")
            && let Some(region) = path.next().filter(|text| looks_like_a_region(text))
        {
            return Some(region);
        }
        if self.host == "queue.amazonaws.com" {
            return Some("us-east-1");
        }
        let labels: Vec<_> = self.host.split('.').collect();
        labels.windows(2).find_map(|pair| match *pair {
            ["sqs" | "sqs-fips", region] | [region, "queue"] if looks_like_a_region(region) => Some(region),
            _ => None,
        })
    }
}

/// `us-east-1`, `us-gov-west-1`: words of lower-case letters, then a number.
fn looks_like_a_region(text: &str) -> bool {
    text.rsplit_once('-').is_some_and(|(words, number)| {
        !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
            && words.contains('-')
            && words.split('-').all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase()))
    })
}

/// The URL as an error may show it: without user name, password, query and fragment, which can be secret.
pub(crate) fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    // the last one: a password that was not escaped can hold a slash or an @
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_cannot_name_a_queue_is_refused_with_the_reason() {
        for (url, problem) in [
            ("", "does not begin with https:// or http://"),
            ("orders.fifo", "does not begin with https:// or http://"),
            ("arn:aws:sqs:us-east-1:1:orders.fifo", "does not begin with https:// or http://"),
            ("https:///1/orders.fifo", "names no host"),
            ("https://:80/1/orders.fifo", "names no host"),
            ("https://sqs.us-east-1.amazonaws.com", "names no account and queue"),
            ("https://sqs.us-east-1.amazonaws.com/", "names no account and queue"),
            ("https://sqs.us-east-1.amazonaws.com/orders.fifo", "names no account and queue"),
            ("https://sqs.us-east-1.amazonaws.com/1/", "names no account and queue"),
            ("https://user:secret@host/1/orders.fifo", "holds a user name or password"),
            ("https://user:sec/ret@host/1/orders.fifo", "holds a user name or password"),
            ("https://host/1/orders.fifo?token=secret", "holds a query or a fragment"),
            ("https://host/1/orders .fifo", "holds a space or a character outside ASCII"),
        ] {
            assert_eq!(QueueUrl::parse(url), Err(problem), "{url}");
        }
    }

    // C19
    #[test]
    fn the_region_is_read_from_every_form_of_queue_url() {
        for (url, region) in [
            ("https://sqs.eu-west-1.amazonaws.com/1/q.fifo", Some("eu-west-1")),
            ("https://sqs.cn-north-1.amazonaws.com.cn/1/q.fifo", Some("cn-north-1")),
            ("https://sqs-fips.us-gov-west-1.amazonaws.com/1/q.fifo", Some("us-gov-west-1")),
            ("https://sqs.eu-west-1.api.aws/1/q.fifo", Some("eu-west-1")),
            ("https://vpce-0a-1b.sqs.eu-west-1.vpce.amazonaws.com/1/q.fifo", Some("eu-west-1")),
            ("https://eu-west-1.queue.amazonaws.com/1/q.fifo", Some("eu-west-1")),
            ("https://queue.amazonaws.com/1/q.fifo", Some("us-east-1")),
            ("http://sqs.us-east-1.localhost.localstack.cloud:4566/000000000000/q.fifo", Some("us-east-1")),
            ("http://127.0.0.1:4566/queue/us-east-1/000000000000/q.fifo", Some("us-east-1")),
            ("http://127.0.0.1:4566/000000000000/q.fifo", None),
            ("http://sqs.internal/1/q.fifo", None),
        ] {
            assert_eq!(QueueUrl::parse(url).unwrap().region(), region, "{url}");
        }
    }

    #[test]
    fn only_a_name_that_ends_in_fifo_is_a_fifo_queue() {
        assert!(QueueUrl::parse("https://host/1/orders.fifo").unwrap().is_fifo());
        assert!(!QueueUrl::parse("https://host/1/orders").unwrap().is_fifo());
        assert!(!QueueUrl::parse("https://host.fifo/1/orders").unwrap().is_fifo());
    }

    #[test]
    fn an_error_shows_no_secret_of_a_url() {
        for (url, expected) in [
            ("https://user:sec/r@et@host/1/q.fifo?token=secret", "https://host/1/q.fifo"),
            ("https://user:secret@host/1/q.fifo", "https://host/1/q.fifo"),
            ("https://host/1/q.fifo?X-Amz-Signature=secret", "https://host/1/q.fifo"),
            ("https://host/1/q.fifo#secret", "https://host/1/q.fifo"),
            ("user:secret@host", "host"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }
}
