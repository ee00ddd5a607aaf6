//! How far a JSON string runs before a byte that means something (RFC 8259 section 7).

use memchr::memchr2;

/// Most strings end within so many bytes; what is longer is worth a vector search.
const NEAR: usize = 32;

/// How many bytes come before the first that is a quote, a backslash or a control character.
#[inline]
pub(super) fn plain_length(rest: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let mut at = 0;
    while let Some(word) = rest[at..].first_chunk::<8>() {
        if at >= NEAR {
            return at + far_plain_length(&rest[at..]);
        }
        let word = u64::from_le_bytes(*word);
        // A borrow spoils bytes behind the first hit only, and only the first counts.
        let zero_in = |word: u64| word.wrapping_sub(ONES) & !word;
        let quote = zero_in(word ^ (ONES * u64::from(b'"')));
        let backslash = zero_in(word ^ (ONES * u64::from(b'\\')));
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let stops = (quote | backslash | control) & HIGH;
        if stops != 0 {
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + rest[at..].iter().take_while(|byte| is_plain(**byte)).count()
}

fn far_plain_length(rest: &[u8]) -> usize {
    let mut at = 0;
    // In steps, so that what is searched twice is still near.
    for part in rest.chunks(4096) {
        let plain = memchr2(b'"', b'\\', part).unwrap_or(part.len());
        // A fold over the least byte becomes vector code.
        if part[..plain].iter().fold(u8::MAX, |least, byte| least.min(*byte)) < 0x20 {
            return at + part.iter().take_while(|byte| is_plain(**byte)).count();
        }
        if plain < part.len() {
            return at + plain;
        }
        at += plain;
    }
    at
}

fn is_plain(byte: u8) -> bool {
    byte >= 0x20 && byte != b'"' && byte != b'\\'
}

#[cfg(test)]
mod tests {
    use super::plain_length;

    #[test]
    fn strings_end_where_they_end() {
        let stops = [b'"', b'\\', 0, 0x1f, b'\n'];
        for length in (0..100).chain([4000, 4095, 4096, 4127, 4128, 4129, 9000]) {
            for filler in [b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xa2, 0xdc, 0xff] {
                let plain = vec![filler; length];
                assert_eq!(plain_length(&plain), length);
                for stop in stops {
                    for behind in [&b""[..], b"\"", b"\\\\\\", b"\0\x01\x1f           ", b"####################"] {
                        let text = [&plain[..], &[stop], behind].concat();
                        assert_eq!(plain_length(&text), length, "{filler} {stop} {behind:?}");
                    }
                }
            }
        }
    }
}
