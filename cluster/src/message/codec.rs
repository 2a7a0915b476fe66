//! The fields that frames are made of.
//!
//! Here: writing and reading numbers and bytes. Not here: the fields of each frame (`message`).

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::MessageError;

/// Appends fields, and records the first one that cannot be sent.
pub(super) struct FrameWriter<'a> {
    out: &'a mut BytesMut,
    fault: Option<MessageError>,
}

/// Removes fields from the front of a body.
pub(super) struct FrameReader {
    body: Bytes,
}

impl<'a> FrameWriter<'a> {
    pub(super) fn new(out: &'a mut BytesMut) -> Self {
        Self { out, fault: None }
    }

    pub(super) fn fault(self) -> Option<MessageError> {
        self.fault
    }

    pub(super) fn check(&mut self, is_good: bool, what: &'static str) {
        if !is_good && self.fault.is_none() {
            self.fault = Some(MessageError::Range(what));
        }
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.out.put_u8(byte);
    }

    /// Bytes of a length that both sides know.
    pub(super) fn array(&mut self, bytes: &[u8]) {
        self.out.put_slice(bytes);
    }

    pub(super) fn number(&mut self, number: impl Into<u64>) {
        let mut left: u64 = number.into();
        while left >= 0x80 {
            self.out.put_u8(left as u8 | 0x80);
            left >>= 7;
        }
        self.out.put_u8(left as u8);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.out.put_slice(bytes);
    }
}

impl FrameReader {
    pub(super) fn new(body: Bytes) -> Self {
        Self { body }
    }

    /// Fails if bytes are left.
    pub(super) fn end(&self) -> Result<(), MessageError> {
        if self.body.is_empty() { Ok(()) } else { Err(MessageError::Long(self.body.len())) }
    }

    /// The remaining bytes.
    pub(super) fn rest(&mut self) -> Bytes {
        self.body.split_off(0)
    }

    pub(super) fn byte(&mut self) -> Result<u8, MessageError> {
        if self.body.is_empty() { Err(MessageError::Short) } else { Ok(self.body.get_u8()) }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let bytes = *self.body.first_chunk().ok_or(MessageError::Short)?;
        self.body.advance(N);
        Ok(bytes)
    }

    pub(super) fn number(&mut self) -> Result<u64, MessageError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(MessageError::Range("number"));
            }
            number |= bits << shift;
            if byte < 0x80 {
                // A last byte of zero would not be the shortest form, which is the only valid one.
                let is_shortest = byte > 0 || shift == 0;
                return is_shortest.then_some(number).ok_or(MessageError::Range("number"));
            }
        }
        Err(MessageError::Range("number"))
    }

    /// A number that fits into `T`.
    pub(super) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, MessageError> {
        T::try_from(self.number()?).map_err(|_| MessageError::Range("number"))
    }

    pub(super) fn bytes(&mut self) -> Result<Bytes, MessageError> {
        let length = self.small::<usize>()?;
        if length > self.body.len() {
            return Err(MessageError::Short);
        }
        Ok(self.body.split_to(length))
    }
}
