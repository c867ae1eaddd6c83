//! The NATS protocol as a server would send it: however the bytes are cut into pieces, the same operations are read.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rankpin::nats::lane::{Decoder, Op, ProtocolError};
use rankpin::nats::{Block, Lines};

/// The first byte is the size of the pieces, the rest is what the server sends.
pub fn frames(data: &[u8]) {
    let Some((piece, sent)) = data.split_first() else { return };
    let whole = read(sent, usize::MAX);
    let pieces = read(sent, usize::from(*piece).max(1));
    assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
    for op in whole.0 {
        if let Op::Message(message) = op {
            let sizes = message.subject().len() + message.reply().map_or(0, str::len) + message.payload().len();
            assert!(sizes <= message.size());
            assert_eq!(message.payload(), message.payload_bytes());
            if let Ok(block) = message.headers() {
                carried_on(block);
            }
        }
    }
}

fn read(sent: &[u8], piece: usize) -> (Vec<Op>, Option<ProtocolError>) {
    let (mut decoder, mut ops, mut rest) = (Decoder::default(), Vec::new(), sent);
    while !rest.is_empty() {
        let mut source = &rest[..piece.min(rest.len())];
        let reading = pin!(decoder.read(&mut source)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(count)) = reading else { panic!("a slice is read at once") };
        assert!(count > 0, "there is room as long as everything is read");
        rest = &rest[count..];
        loop {
            match decoder.decode() {
                Ok(Some(op)) => ops.push(op),
                Ok(None) => break,
                Err(error) => return (ops, Some(error)),
            }
        }
    }
    (ops, None)
}

/// Headers that were read are sound once they are written again, and say the same.
fn carried_on(block: Block<'_>) {
    let mut lines = Lines::new();
    lines.extend(block, |_| true);
    let text = lines.block();
    assert_eq!(text.len(), lines.wire_len());
    let (again, status) = Block::read(text.as_bytes()).expect("sound headers stay sound");
    assert_eq!(status, None);
    assert!(again.iter().eq(block.iter()));
}
