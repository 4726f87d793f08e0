//! The checksums of a reply, as the developer guide describes them ("Calculating the MD5 message digest for message
//! attributes").

use md5::{Digest as _, Md5};
use serde_json::{Map, Value};

pub(super) fn of_body(body: &str) -> String {
    hex(Md5::new_with_prefix(body))
}

pub(super) fn of_attributes(attributes: &Map<String, Value>) -> Option<String> {
    if attributes.is_empty() {
        return None;
    }
    let mut digest = Md5::new();
    let add = |digest: &mut Md5, text: &str| {
        digest.update(u32::try_from(text.len()).unwrap().to_be_bytes());
        digest.update(text);
    };
    let mut names: Vec<_> = attributes.keys().collect();
    names.sort_unstable();
    for name in names {
        let text = |field: &str| attributes[name][field].as_str().unwrap_or_default();
        add(&mut digest, name);
        add(&mut digest, text("DataType"));
        // 1: the value is a string or a number, 2: it is binary
        digest.update([1]);
        add(&mut digest, text("StringValue"));
    }
    Some(hex(digest))
}

fn hex(digest: Md5) -> String {
    format!("{:032x}", u128::from_be_bytes(digest.finalize().into()))
}
