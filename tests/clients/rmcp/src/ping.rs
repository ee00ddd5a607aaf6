//! One bare HTTP request, for what the SDK would not send: a message in a session that has ended.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The HTTP status that a request in this session gets.
pub async fn status_of_ping(
    server: SocketAddr,
    path: &str,
    session: &str,
    revision: &str,
) -> io::Result<String> {
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {revision}\r\n\
         Mcp-Session-Id: {session}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len(),
    );
    let mut connection = TcpStream::connect(server).await?;
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer.split(' ').nth(1).unwrap_or_default().to_owned())
}
