//! The field `model` of a form with files (`multipart/form-data`, RFC 7578). Pure.
//!
//! A form is read where it is: files are not copied, and the form keeps its bytes but for the name of the model.

use std::ops::Range;

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;

/// Most fields of a form.
const FIELDS: usize = 64;
/// Longest boundary, by RFC 2046.
const LONGEST_BOUNDARY: usize = 70;

/// Reason why a form cannot be routed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The content has another type.
    #[error("the content is not a form: send Content-Type: multipart/form-data with a boundary")]
    NotAForm,
    /// A part of the form is not complete.
    #[error("the form ends within a field, or its boundary is not that of Content-Type")]
    Incomplete,
    /// There are too many fields.
    #[error("the form has more than {FIELDS} fields")]
    TooMany,
    /// No field has the name of the model.
    #[error("the form has no field `model`: set it to an id of GET /v1/models")]
    NoModel,
    /// Several fields have it.
    #[error("the form has several fields `model`: send one")]
    SeveralModels,
}

/// The boundary of a form.
///
/// # Errors
/// The content is not a form.
pub fn boundary(headers: &HeaderMap) -> Result<&str, Error> {
    let content = headers.get(CONTENT_TYPE).and_then(|content| content.to_str().ok());
    let mut parts = content.ok_or(Error::NotAForm)?.split(';').map(str::trim);
    let is_form = parts
        .next()
        .is_some_and(|kind| kind.eq_ignore_ascii_case("multipart/form-data"));
    let boundary = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.eq_ignore_ascii_case("boundary").then(|| value.trim_matches('"'))
    });
    boundary
        .filter(|boundary| is_form && (1..=LONGEST_BOUNDARY).contains(&boundary.len()))
        .ok_or(Error::NotAForm)
}

/// The place of the value of the field `model`.
///
/// # Errors
/// The form is not complete, or does not have one such field.
pub fn model(form: &[u8], boundary: &str) -> Result<Range<usize>, Error> {
    let delimiter = format!("\r\n--{boundary}");
    // The first one is at the start of a form, without a line before it.
    let first = &delimiter.as_bytes()[2..];
    let mut at = if form.starts_with(first) {
        first.len()
    } else {
        find(form, 0, delimiter.as_bytes())? + delimiter.len()
    };
    let mut found = None;
    for _ in 0..=FIELDS {
        match form.get(at..at + 2) {
            Some(b"--") => return found.ok_or(Error::NoModel),
            Some(b"\r\n") => {}
            _ => return Err(Error::Incomplete),
        }
        // A field without headers has an empty line at once.
        let headers_end = find(form, at, b"\r\n\r\n")?;
        let value_start = headers_end + 4;
        let value_end = find(form, value_start, delimiter.as_bytes())?;
        if is_model(&form[at..headers_end]) && found.replace(value_start..value_end).is_some() {
            return Err(Error::SeveralModels);
        }
        at = value_end + delimiter.len();
    }
    Err(Error::TooMany)
}

fn find(text: &[u8], start: usize, part: &[u8]) -> Result<usize, Error> {
    let found = memchr::memmem::find(text.get(start..).unwrap_or_default(), part);
    found.map(|at| start + at).ok_or(Error::Incomplete)
}

/// Whether these headers are those of the field `model`.
fn is_model(headers: &[u8]) -> bool {
    let Ok(headers) = str::from_utf8(headers) else {
        return false;
    };
    let disposition = headers.lines().filter_map(|line| line.split_once(':'));
    let mut disposition = disposition.filter(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"));
    disposition.any(|(_, value)| {
        let mut parameters = value.split(';').map(str::trim).filter_map(|part| part.split_once('='));
        parameters.any(|(name, value)| name.eq_ignore_ascii_case("name") && value.trim_matches('"') == "model")
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const FILE: &str = "Content-Disposition: form-data; name=\"file\"; filename=\"model\"\r\nContent-Type: audio/wav\r\n\r\n\0\r\n--other\r\nname=\"model\"";
    const MODEL: &str = "content-disposition: form-data; name=\"model\"\r\n\r\nwhisper";

    fn form(fields: &[&str]) -> String {
        let fields: Vec<String> = fields.iter().map(|field| format!("--b\r\n{field}\r\n")).collect();
        format!("{}--b--\r\n", fields.concat())
    }

    fn named(form: &str) -> Result<&str, Error> {
        model(form.as_bytes(), "b").map(|at| &form[at])
    }

    #[test]
    fn model_of_a_form_is_found_beside_files() {
        assert_eq!(named(&form(&[FILE, MODEL])), Ok("whisper"));
        assert_eq!(named(&form(&[MODEL, FILE])), Ok("whisper"));
        let preamble = format!("text before\r\n{}", form(&[MODEL]));
        assert_eq!(named(&preamble), Ok("whisper"));
    }

    #[test]
    fn forms_without_one_model_are_refused() {
        assert_eq!(named(&form(&[FILE])), Err(Error::NoModel));
        assert_eq!(named(&form(&[MODEL, FILE, MODEL])), Err(Error::SeveralModels));
        assert_eq!(named(""), Err(Error::Incomplete));
        assert_eq!(named("--b"), Err(Error::Incomplete));
        assert_eq!(named(&format!("--b\r\n{MODEL}")), Err(Error::Incomplete));
        assert_eq!(named(&form(&[FILE; FIELDS + 1])), Err(Error::TooMany));
        assert_eq!(named("--b--"), Err(Error::NoModel));
    }

    #[test]
    fn boundary_is_read_from_the_type_of_the_content() {
        let of = |content: &'static str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content))]);
            boundary(&headers).map(ToOwned::to_owned)
        };
        assert_eq!(of("multipart/form-data; boundary=b").as_deref(), Ok("b"));
        assert_eq!(
            of("Multipart/Form-Data; charset=utf-8; Boundary=\"b c\"").as_deref(),
            Ok("b c")
        );
        for content in [
            "application/json",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "text/plain; boundary=b",
        ] {
            assert_eq!(of(content), Err(Error::NotAForm), "{content}");
        }
    }
}
