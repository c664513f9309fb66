//! Requests and responses of HTTP/1.1 that scrapes and the page need: `GET` and `HEAD`, one per connection,
//! without a body.
//!
//! What a client sends is bounded: a head of [`MAX_HEAD`] bytes with [`MAX_HEADERS`] headers. Everything else
//! is refused with a status, after which the connection ends.

use crate::hosts::Hosts;

/// Longest head of a request in bytes.
pub const MAX_HEAD: usize = 8 * 1024;

/// Most headers of a request.
const MAX_HEADERS: usize = 64;

/// Media types of the metrics.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What browsers let the page do: run what is in it, and ask where it came from.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The format of the metrics that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Prometheus's text format.
    Text,
    /// OpenMetrics.
    OpenMetrics,
}

impl Format {
    /// Of the `Accept` header: OpenMetrics if it is wanted at least as much as plain text.
    fn wanted(accept: &str) -> Format {
        let (mut open_metrics, mut text) = (0, 0);
        for entry in accept.split(',') {
            let mut parts = entry.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let quality = parts
                .find_map(|part| part.strip_prefix("q="))
                .map_or(1_000, thousandths);
            match kind {
                "application/openmetrics-text" => open_metrics = open_metrics.max(quality),
                "text/plain" => text = text.max(quality),
                _ => {}
            }
        }
        match open_metrics > 0 && open_metrics >= text {
            true => Format::OpenMetrics,
            false => Format::Text,
        }
    }

    fn media_type(self) -> &'static str {
        match self {
            Format::Text => TEXT,
            Format::OpenMetrics => OPEN_METRICS,
        }
    }
}

/// A weight like `0.5` (RFC 9110, section 12.4.2), in thousandths; 0 for anything else.
fn thousandths(text: &str) -> u32 {
    let weight: f32 = text.parse().unwrap_or(0.0);
    (weight.clamp(0.0, 1.0) * 1_000.0) as u32
}

/// What there is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// `/metrics`.
    Metrics(Format),
    /// `/`: the page, which asks for the others.
    Page,
    /// `/figures.json`: counters of now.
    Figures,
    /// `/history.json`: rates of the last 15 minutes.
    History,
    /// `/talkers.json`: which port sends to which.
    Talkers,
}

impl Resource {
    /// By its path, and the `Accept` header.
    fn at(path: &str, accept: &str) -> Option<Resource> {
        Some(match path {
            "/metrics" => Resource::Metrics(Format::wanted(accept)),
            "/" => Resource::Page,
            "/figures.json" => Resource::Figures,
            "/history.json" => Resource::History,
            "/talkers.json" => Resource::Talkers,
            _ => return None,
        })
    }

    fn media_type(self) -> &'static str {
        match self {
            Resource::Metrics(format) => format.media_type(),
            Resource::Page => "text/html; charset=utf-8",
            Resource::Figures | Resource::History | Resource::Talkers => "application/json",
        }
    }
}

/// What a client has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// More of the request has to come.
    More,
    /// A resource; without a body if it was `HEAD`.
    Resource { resource: Resource, head_only: bool },
    /// Nothing that there is; the status says why.
    Refused(Status),
}

/// A status that is no success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// What came is no request of HTTP/1.
    BadRequest,
    /// The request calls the process by a name that is not its own.
    Misdirected,
    /// There is nothing at this path.
    NotFound,
    /// The method changes something, or is unknown.
    MethodNotAllowed,
    /// The head is too long.
    TooLarge,
    /// The control process does not answer.
    Unavailable,
}

impl Status {
    /// What else there is to say to a person.
    pub fn reason(self) -> &'static str {
        match self {
            Status::Misdirected => {
                "this process listens at a loopback address, and answers only requests to such an address \
                 or to localhost"
            }
            _ => "only GET and HEAD of / and /metrics are answered",
        }
    }

    fn line(self) -> &'static str {
        match self {
            Status::BadRequest => "400 Bad Request",
            Status::Misdirected => "421 Misdirected Request",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed",
            Status::TooLarge => "431 Request Header Fields Too Large",
            Status::Unavailable => "503 Service Unavailable",
        }
    }
}

/// Reads the head of a request to one of `hosts`.
pub fn read(bytes: &[u8], hosts: Hosts) -> Wanted {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Wanted::More,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Wanted::Refused(Status::TooLarge);
        }
        Err(_) => return Wanted::Refused(Status::BadRequest),
    }
    let named = |wanted: &'static str| {
        let headers = request.headers.iter();
        headers.filter(move |header| header.name.eq_ignore_ascii_case(wanted))
    };
    if !named("host").all(|header| hosts.include(header.value)) {
        return Wanted::Refused(Status::Misdirected);
    }
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Wanted::Refused(Status::MethodNotAllowed),
    };
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let accept: Vec<&str> = named("accept")
        .filter_map(|header| std::str::from_utf8(header.value).ok())
        .collect();
    match Resource::at(path, &accept.join(",")) {
        Some(resource) => Wanted::Resource { resource, head_only },
        None => Wanted::Refused(Status::NotFound),
    }
}

/// The response with a resource.
pub fn found(body: &str, resource: Resource, head_only: bool) -> Vec<u8> {
    let head = head("200 OK", resource.media_type(), body.len());
    let body = if head_only { "" } else { body };
    [head.as_bytes(), body.as_bytes()].concat()
}

/// The response without a resource.
pub fn refusal(status: Status, reason: &str) -> Vec<u8> {
    let body = format!("{reason}\n");
    let head = head(status.line(), "text/plain; charset=utf-8", body.len());
    [head, body].concat().into_bytes()
}

fn head(status: &str, media_type: &str, length: usize) -> String {
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n{allow}\
         X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n\
         Content-Security-Policy: {POLICY}\r\nConnection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(accept: &str) -> Wanted {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n");
        read(request.as_bytes(), Hosts::Loopback)
    }

    fn metrics_in(format: Format) -> Wanted {
        Wanted::Resource {
            resource: Resource::Metrics(format),
            head_only: false,
        }
    }

    #[test]
    fn the_format_is_the_one_that_is_wanted_most() {
        // As Prometheus 2.42 asks.
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(get(prometheus), metrics_in(Format::OpenMetrics));
        for text in [
            "*/*",
            "text/plain",
            "",
            "text/plain, application/openmetrics-text;q=0.5",
            "x;q=y",
        ] {
            assert_eq!(get(text), metrics_in(Format::Text), "{text}");
        }
        let no_weight = "application/openmetrics-text;q=0";
        assert_eq!(get(no_weight), metrics_in(Format::Text));
    }

    #[test]
    fn what_is_no_scrape_is_refused() {
        let refused = |bytes: &[u8]| match read(bytes, Hosts::Loopback) {
            Wanted::Refused(status) => status,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            refused(b"POST /metrics HTTP/1.1\r\n\r\n"),
            Status::MethodNotAllowed
        );
        assert_eq!(refused(b"GET /../etc/passwd HTTP/1.1\r\n\r\n"), Status::NotFound);
        assert_eq!(refused(b"GET /metrics HTTP/9.9\r\n\r\n"), Status::BadRequest);
        assert_eq!(
            refused(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
            Status::BadRequest
        );
        for host in ["evil.example", "localhost\r\nHost: evil.example"] {
            let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(refused(request.as_bytes()), Status::Misdirected, "{host}");
        }
        assert_eq!(refused(&[b'A'; MAX_HEAD]), Status::TooLarge);
        let many = format!(
            "GET /metrics HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(MAX_HEADERS + 1)
        );
        assert_eq!(refused(many.as_bytes()), Status::TooLarge);
        assert_eq!(
            read(b"GET /metrics HTTP/1.1\r\nHost", Hosts::Loopback),
            Wanted::More
        );
        assert_eq!(
            read(b"HEAD /metrics?x=1 HTTP/1.0\r\n\r\n", Hosts::Loopback),
            Wanted::Resource {
                resource: Resource::Metrics(Format::Text),
                head_only: true
            }
        );
    }
}
