//! Products wider than 128 bits, for the square of a warm-up and for a change of rate.

/// Returns `a × b ÷ divisor`, rounded down, and the remainder; exact for a product of any size. A
/// quotient that does not fit is [`u128::MAX`].
pub(crate) fn mul_div(a: u128, b: u128, divisor: u128) -> (u128, u128) {
    if let Some(product) = a.checked_mul(b) {
        return (product / divisor, product % divisor);
    }
    let (low, high) = a.carrying_mul(b, 0);
    if high >= divisor {
        return (u128::MAX, 0);
    }
    // Long division, bit by bit: too rare to deserve a faster method.
    let (mut quotient, mut rest) = (0, high);
    for bit in (0..u128::BITS).rev() {
        let carried = rest >> (u128::BITS - 1) == 1;
        rest = (rest << 1) | (low >> bit & 1);
        if carried || rest >= divisor {
            rest = rest.wrapping_sub(divisor);
            quotient |= 1 << bit;
        }
    }
    (quotient, rest)
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_wide_quotient_is_exact(a in any::<u128>(), b in any::<u128>(), divisor in 1_u128..) {
            let product = BigUint::from(a) * BigUint::from(b);
            let exact = (&product / divisor, &product % divisor);
            let (quotient, rest) = mul_div(a, b, divisor);
            if let Ok(fits) = u128::try_from(&exact.0) {
                prop_assert_eq!((BigUint::from(quotient), BigUint::from(rest)), exact);
                prop_assert_eq!(fits, quotient);
            } else {
                prop_assert_eq!(quotient, u128::MAX);
            }
        }
    }
}
