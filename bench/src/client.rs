//! An HTTP/1.1 client that costs little: one connection, one request at a time, the answer's status and body.

use anyhow::{Context as _, Result, anyhow, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// An answer's status, and where its body stands in the connection's buffer.
pub struct Answer<'a> {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: &'a [u8],
}

impl Connection {
    /// Connects.
    pub async fn open(addr: &str) -> Result<Self> {
        let stream = TcpStream::connect(addr).await.with_context(|| format!("cannot reach {addr}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(64 * 1024) })
    }

    /// Sends a request and reads its answer.
    pub async fn send(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("the connection was closed");
            }
            let Some(head_end) = find(&self.buffer, b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.buffer[..head_end])?;
            let status = head.get(9..12).and_then(|code| code.parse().ok()).ok_or_else(|| anyhow!("no status"))?;
            let length = header(head, "content-length").and_then(|length| length.parse::<usize>().ok()).unwrap_or(0);
            let body_start = head_end + 4;
            while self.buffer.len() < body_start + length {
                if self.stream.read_buf(&mut self.buffer).await? == 0 {
                    bail!("the connection was closed");
                }
            }
            return Ok(Answer { status, body: &self.buffer[body_start..body_start + length] });
        }
    }
}

/// A GET.
pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").into_bytes()
}

/// A POST with a key.
pub fn post(path: &str, key: &str, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\ncontent-type: {content_type}\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn find(buffer: &[u8], wanted: &[u8]) -> Option<usize> {
    buffer.windows(wanted.len()).position(|window| window == wanted)
}
