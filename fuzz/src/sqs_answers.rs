//! Any bytes as an answer of SQS: reading ends without a panic, gives the same twice, and an error is an error of one kind.
//!
//! The first line is the status and the header `x-amzn-query-error`; the rest is the body.

use bytes::Bytes;
use http::{Response, StatusCode};
use runway_sqs::{Error, read_answer};

pub fn run(data: &[u8]) {
    let (head, body) = match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (&b"200"[..], data),
    };
    let head = String::from_utf8_lossy(head);
    let (status, error) = head.split_once(' ').unwrap_or((&head, ""));
    let status: StatusCode = status.parse().unwrap_or(StatusCode::OK);
    let mut response = Response::new(Bytes::copy_from_slice(body));
    *response.status_mut() = status;
    if let (false, Ok(error)) = (error.is_empty(), error.parse()) {
        response.headers_mut().insert("x-amzn-query-error", error);
    }
    let answer = read_answer(&response);
    assert_eq!(format!("{answer:?}"), format!("{:?}", read_answer(&response)));
    match answer {
        Ok((messages, ..)) => {
            assert!(status.is_success());
            for message in messages {
                let (_, headers) = (message.deliveries(), message.headers());
                assert!(headers.len() <= body.len());
            }
        }
        Err(error) => check(&error),
    }
}

fn check(error: &Error) {
    assert!(!error.to_string().is_empty());
    let kinds = [error.is_no_queue(), error.is_stale_receipt()];
    assert!(matches!(error, Error::Refused { .. }) || !kinds.contains(&true));
}
