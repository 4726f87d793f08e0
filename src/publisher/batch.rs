//! How many waiting messages fit into one request.

/// What one request can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most messages. SQS: 10.
    pub entries: usize,
    /// Most bytes of all messages together. SQS: 1 MiB, or less if the queue says so.
    pub bytes: usize,
}

impl Limits {
    /// How many messages from the front of a queue fit into one request, given their sizes in order.
    ///
    /// At least one if there is any: a message that is too large by itself must still be refused by name.
    pub fn fit(self, sizes: impl IntoIterator<Item = usize>) -> usize {
        let mut bytes = 0usize;
        sizes
            .into_iter()
            .take(self.entries.max(1))
            .enumerate()
            .take_while(|(place, size)| {
                bytes = bytes.saturating_add(*size);
                *place == 0 || bytes <= self.bytes
            })
            .count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SQS: Limits = Limits { entries: 10, bytes: 1 << 20 };

    #[test]
    fn a_request_holds_ten_small_messages() {
        assert_eq!(SQS.fit([]), 0);
        assert_eq!(SQS.fit([100; 9]), 9);
        assert_eq!(SQS.fit([100; 11]), 10);
    }

    // C13
    #[test]
    fn ten_messages_of_200_kb_are_split_by_bytes() {
        assert_eq!(SQS.fit([200_000; 10]), 5);
    }

    #[test]
    fn the_byte_limit_itself_still_fits() {
        let half = SQS.bytes / 2;
        assert_eq!(SQS.fit([half, half]), 2);
        assert_eq!(SQS.fit([half, half + 1]), 1);
    }

    #[test]
    fn a_message_too_large_by_itself_goes_alone() {
        assert_eq!(SQS.fit([SQS.bytes + 1, 1]), 1);
        assert_eq!(SQS.fit([1, SQS.bytes, 1]), 1);
        assert_eq!(SQS.fit([usize::MAX, usize::MAX]), 1);
    }

    proptest! {
        #[test]
        fn every_message_goes_out_once_and_no_request_exceeds_the_limits(
            sizes in prop::collection::vec(0usize..2_000_000, 0..200),
        ) {
            let mut sent = 0;
            while sent < sizes.len() {
                let taken = SQS.fit(sizes[sent..].iter().copied());
                let request = &sizes[sent..sent + taken];
                prop_assert!((1..=SQS.entries).contains(&taken));
                prop_assert!(taken == 1 || request.iter().sum::<usize>() <= SQS.bytes);
                sent += taken;
            }
            prop_assert_eq!(sent, sizes.len());
        }
    }
}
