//! A piece of a reply, written from its end to its start: the last digit of a number comes first,
//! and the whole piece is copied once.
//!
//! Here: the buffer and its numbers. Not here: the contents of replies (`native`, `reply`).

/// A buffer of `N` bytes, filled from its end.
pub(crate) struct Backwards<const N: usize> {
    bytes: [u8; N],
    start: usize,
}

impl<const N: usize> Backwards<N> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], start: N }
    }

    /// Puts `bytes` before the bytes that are already written.
    #[inline]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let start = self.start - bytes.len();
        self.bytes[start..self.start].copy_from_slice(bytes);
        self.start = start;
    }

    /// Puts a blank and `value`, in decimal, before the bytes that are already written.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a verdict has four: a third fewer instructions")]
    pub(crate) fn blank_and_number(&mut self, mut value: u64) {
        while value >= 100 {
            self.bytes(&TWO_DIGITS[(value % 100) as usize]);
            value /= 100;
        }
        match TWO_DIGITS[value as usize] {
            [b'0', one] => self.bytes(&[b' ', one]),
            [ten, one] => self.bytes(&[b' ', ten, one]),
        }
    }

    /// Like [`Self::blank_and_number`], but for a signed number.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as of a number without one")]
    pub(crate) fn blank_and_signed(&mut self, value: i64) {
        self.blank_and_number(value.unsigned_abs());
        if value < 0 {
            // The minus sign takes the blank's place.
            self.start += 1;
            self.bytes(b" -");
        }
    }

    #[inline]
    pub(crate) fn written(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// 00 to 99.
const TWO_DIGITS: [[u8; 2]; 100] = {
    let mut digits = [[0; 2]; 100];
    let mut value = 0;
    while value < 100 {
        digits[value] = [b'0' + value as u8 / 10, b'0' + value as u8 % 10];
        value += 1;
    }
    digits
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(number: u64) {
        let mut piece = Backwards::<48>::new();
        piece.blank_and_number(number);
        piece.bytes(b"word");
        assert_eq!(piece.written(), format!("word {number}").as_bytes());
    }

    #[test]
    fn numbers_of_any_length_are_written() {
        for edge in (0..20).map(|digits| 10_u64.pow(digits)) {
            check(edge);
            check(edge - 1);
        }
        check(u64::MAX);
    }

    proptest! {
        #[test]
        fn any_number_with_a_sign_is_written(number: i64) {
            let mut piece = Backwards::<48>::new();
            piece.blank_and_signed(number);
            let expected = format!(" {number}");
            prop_assert_eq!(piece.written(), expected.as_bytes());
        }

        #[test]
        fn any_number_is_written(number: u64) {
            check(number);
        }
    }
}
