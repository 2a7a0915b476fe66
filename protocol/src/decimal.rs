//! Numbers in decimal, appended to a reply.
//!
//! Here: writing them forwards. Not here: numbers that are written from their end (`backwards`),
//! parsing them (`number`).

/// Appends `value` in decimal. Numbers of up to three digits are the fastest: their few bytes have
/// a length known at compile time and need no call to copy them.
pub(crate) fn write_number(out: &mut Vec<u8>, value: u64) {
    let digit = digits(value);
    match value {
        0..10 => out.push(digit(1)),
        10..100 => out.extend_from_slice(&[digit(10), digit(1)]),
        100..1000 => out.extend_from_slice(&[digit(100), digit(10), digit(1)]),
        _ => write_long_number(out, value),
    }
}

/// Like [`write_number`], for a number that has more than three digits.
pub(crate) fn write_long_number(out: &mut Vec<u8>, value: u64) {
    match EightDigits::of(value) {
        Some(digits) => digits.write(out),
        None => out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
    }
}

/// Returns a function that maps a place (1, 10, 100, ...) to the digit of `value` at that place, in
/// ASCII.
pub(crate) fn digits(value: u64) -> impl Fn(u64) -> u8 {
    move |place| b'0' + (value / place % 10) as u8
}

/// A number of up to eight digits.
struct EightDigits {
    /// The digits from the first byte on; the bytes behind them are meaningless.
    text: [u8; 8],
    /// The number of digits.
    count: usize,
}

impl EightDigits {
    /// Returns the digits of `value`; `None` if there are more than eight.
    ///
    /// The number is split into two halves, side by side in one word, and each half again, until
    /// each part is one digit. No branch depends on the number of digits, which the processor
    /// cannot predict.
    #[inline]
    fn of(value: u64) -> Option<Self> {
        if value >= 100_000_000 {
            return None;
        }
        // Multiplying by 10,486 and shifting divides by 100, up to 10,000; multiplying by 103
        // divides by 10, up to 100.
        let fours = (value / 10_000) | ((value % 10_000) << 32);
        let tops = ((fours * 10_486) >> 20) & 0x7f_0000_007f;
        let twos = tops | ((fours - 100 * tops) << 16);
        let tops = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
        let ones = tops | ((twos - 10 * tops) << 8);
        // The first digit lies in the lowest byte. The added bit lets 0 keep one digit.
        let zeros = (ones | (1 << 56)).trailing_zeros() / 8;
        let text = (ones | u64::from_le_bytes([b'0'; 8])) >> (8 * zeros);
        Some(Self { text: text.to_le_bytes(), count: 8 - zeros as usize })
    }

    /// Appends the digits to `out`.
    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.count;
        out.extend_from_slice(&self.text);
        out.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(value: u64) {
        let mut out = b"incr".to_vec();
        write_number(&mut out, value);
        write_long_number(&mut out, value);
        assert_eq!(out, format!("incr{value}{value}").as_bytes());
    }

    #[test]
    fn all_halves_are_split() {
        (0..10_000).for_each(check);
        (0..10_000).for_each(|half| check(half * 10_000 + half));
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
        fn any_number_is_written(value: u64, short in 0_u64..200_000_000) {
            check(value);
            check(short);
        }
    }
}
