//! The steps.

use std::fmt::Debug;
use std::net::SocketAddr;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientRequest, LoggingLevel, ReadResourceRequestParams,
    Request, ServerResult, SetLevelRequestParams, SubscribeRequestParams, UnsubscribeRequestParams,
};
use rmcp::service::{PeerRequestOptions, RequestHandle, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{RoleClient, ServiceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::ping::status_of_ping;
use crate::recorder::Recorder;
use crate::relay::Relay;
use crate::report::{Failure, Report};

const REVISION: &str = "2025-11-25";
const COUNTER: &str = "demo://counter";

// Characters that JSON, UTF-8, SSE and line framing each treat in a way of their own.
const TRICKY_TEXT: &str = "naïve Ωμέγα 漢字 👩‍👩‍👧 \u{2028}\u{2029}\u{85} \"quoted\" \\ back\\slash </script>\r\ndata: forged\n\n\t\u{7}\0 end";

/// Runs every step against the server at `url`, which names an IP address, and gives the number of failures.
pub async fn perform(url: &str) -> usize {
    let mut report = Report::default();
    let scenario = report.step("connect", Scenario::connect(url)).await;
    let Some(mut scenario) = scenario else {
        for name in [
            "list",
            "call",
            "integers",
            "progress",
            "sampling",
            "elicitation",
            "roots",
            "subscribe",
            "logging",
            "cancel",
            "resume",
            "close",
        ] {
            report
                .step(name, async { Err::<(), Failure>("not connected".into()) })
                .await;
        }
        return report.failed;
    };
    report.step("list", scenario.list()).await;
    report.step("call", scenario.call()).await;
    report.step("integers", scenario.integers()).await;
    report.step("progress", scenario.progress()).await;
    report.step("sampling", scenario.sampling()).await;
    report.step("elicitation", scenario.elicitation()).await;
    report.step("roots", scenario.roots()).await;
    report.step("subscribe", scenario.subscribe()).await;
    report.step("logging", scenario.logging()).await;
    report.step("cancel", scenario.cancel()).await;
    report.step("resume", scenario.resume()).await;
    report.step("close", scenario.close()).await;
    report.failed
}

struct Scenario {
    server: SocketAddr,
    path: String,
    relay: Relay,
    client: RunningService<RoleClient, Recorder>,
    progress: mpsc::UnboundedReceiver<(f64, Option<f64>)>,
    logged: mpsc::UnboundedReceiver<LoggingLevel>,
    updated: mpsc::UnboundedReceiver<String>,
}

impl Scenario {
    async fn connect(url: &str) -> Result<Self, Failure> {
        let rest = url.strip_prefix("http://").ok_or("not an http URL")?;
        let (address, path) = rest.split_once('/').ok_or("a URL without a path")?;
        let (server, path) = (address.parse()?, format!("/{path}"));
        let relay = Relay::start(server).await?;
        let (progress_sender, progress) = mpsc::unbounded_channel();
        let (logged_sender, logged) = mpsc::unbounded_channel();
        let (updated_sender, updated) = mpsc::unbounded_channel();
        let recorder = Recorder {
            progress: progress_sender,
            logged: logged_sender,
            updated: updated_sender,
        };
        let transport =
            StreamableHttpClientTransport::from_uri(format!("http://{}{path}", relay.address));
        let client = recorder.serve(transport).await?;
        let peer = client
            .peer_info()
            .ok_or("the server did not introduce itself")?;
        same(peer.protocol_version.as_str(), REVISION)?;
        Ok(Self {
            server,
            path,
            relay,
            client,
            progress,
            logged,
            updated,
        })
    }

    async fn start(
        &self,
        name: &'static str,
        arguments: Value,
    ) -> Result<RequestHandle<RoleClient>, Failure> {
        let arguments = arguments
            .as_object()
            .ok_or("arguments are an object")?
            .clone();
        let params = CallToolRequestParams::new(name).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(Request::new(params));
        Ok(self
            .client
            .send_cancellable_request(request, PeerRequestOptions::no_options())
            .await?)
    }

    async fn tool(&self, name: &'static str, arguments: Value) -> Result<CallToolResult, Failure> {
        finish(self.start(name, arguments).await?).await
    }

    /// Calls one of the tools that ask the client, whose text is the client's own answer as JSON.
    async fn answer_seen_by(&self, name: &'static str, arguments: Value) -> Result<Value, Failure> {
        let result = self.tool(name, arguments).await?;
        same(result.is_error.unwrap_or_default(), false)?;
        Ok(serde_json::from_str(&text(&result))?)
    }

    async fn list(&self) -> Result<(), Failure> {
        let tools = self.client.list_all_tools().await?;
        for name in ["echo", "slow", "ask_sampling"] {
            same(tools.iter().filter(|tool| tool.name == name).count(), 1)?;
        }
        let resources = self.client.list_all_resources().await?;
        same(
            resources
                .iter()
                .filter(|resource| resource.uri == COUNTER)
                .count(),
            1,
        )?;
        same(
            self.client.list_all_resource_templates().await?.is_empty(),
            false,
        )?;
        same(self.client.list_all_prompts().await?.is_empty(), false)
    }

    async fn call(&self) -> Result<(), Failure> {
        let arguments = json!({
            "text": TRICKY_TEXT,
            "clé \"with\" \n everything": [null, true, false, [], {}, ""],
            "numbers": [0, -1, 1.5, 1e-7, 1e21],
            "nested": { "a": { "b": { "c": { "d": [[[["deep"]]]] } } } },
        });
        let result = self.tool("echo", arguments.clone()).await?;
        same(text(&result).as_str(), TRICKY_TEXT)?;
        same(result.structured_content, Some(arguments))?;
        let large = self.tool("payload", json!({ "bytes": 900_000 })).await?;
        same(text(&large).len(), 900_000)
    }

    /// Beyond what a double holds, within what `serde_json` does.
    async fn integers(&self) -> Result<(), Failure> {
        let integers = json!([(1_u64 << 53) + 1, 1_u64 << 63, u64::MAX, i64::MIN]);
        let result = self
            .tool("echo", json!({ "text": "", "integers": integers }))
            .await?;
        let content = result.structured_content.ok_or("no structured content")?;
        same(&content["integers"], &integers)
    }

    async fn progress(&mut self) -> Result<(), Failure> {
        while self.progress.try_recv().is_ok() {}
        self.tool("slow", json!({ "seconds": 0.3, "steps": 5 }))
            .await?;
        for step in 1..=5 {
            same(
                self.progress.recv().await,
                Some((f64::from(step), Some(5.0))),
            )?;
        }
        Ok(())
    }

    async fn sampling(&self) -> Result<(), Failure> {
        let answer = self
            .answer_seen_by("ask_sampling", json!({ "prompt": "ünïcode?" }))
            .await?;
        same(
            answer["content"]["text"].as_str(),
            Some("answer to ünïcode?"),
        )
    }

    async fn elicitation(&self) -> Result<(), Failure> {
        let answer = self
            .answer_seen_by("ask_elicitation", json!({ "message": "who?" }))
            .await?;
        same(answer["action"].as_str(), Some("accept"))?;
        same(answer["content"]["name"].as_str(), Some("asked who?"))
    }

    async fn roots(&self) -> Result<(), Failure> {
        let answer = self.answer_seen_by("ask_roots", json!({})).await?;
        same(
            answer["roots"][0]["uri"].as_str(),
            Some("file:///tmp/a%20root"),
        )
    }

    async fn read_counter(&self) -> Result<Value, Failure> {
        let read = self
            .client
            .read_resource(ReadResourceRequestParams::new(COUNTER))
            .await?;
        Ok(json!(read)["contents"][0]["text"].clone())
    }

    async fn subscribe(&mut self) -> Result<(), Failure> {
        self.client
            .subscribe(SubscribeRequestParams::new(COUNTER))
            .await?;
        let before = self.read_counter().await?;
        self.tool("update_resource", json!({})).await?;
        same(self.updated.recv().await.as_deref(), Some(COUNTER))?;
        same(self.read_counter().await? == before, false)?;
        Ok(self
            .client
            .unsubscribe(UnsubscribeRequestParams::new(COUNTER))
            .await?)
    }

    async fn logging(&mut self) -> Result<(), Failure> {
        self.client
            .set_level(SetLevelRequestParams::new(LoggingLevel::Warning))
            .await?;
        self.tool(
            "log",
            json!({ "level": "info", "count": 2, "message": "below the level" }),
        )
        .await?;
        self.tool(
            "log",
            json!({ "level": "error", "count": 3, "message": "above the level" }),
        )
        .await?;
        for _ in 0..3 {
            same(self.logged.recv().await, Some(LoggingLevel::Error))?;
        }
        Ok(())
    }

    /// Half of it: that the server hears of it is what the driver sees at the server's standard input.
    async fn cancel(&mut self) -> Result<(), Failure> {
        while self.progress.try_recv().is_ok() {}
        let call = self
            .start("slow", json!({ "seconds": 600, "steps": 1000 }))
            .await?;
        self.progress.recv().await.ok_or("no progress")?;
        call.cancel(Some("enough".to_owned())).await?;
        let result = self.tool("echo", json!({ "text": "still here" })).await?;
        same(text(&result).as_str(), "still here")
    }

    async fn resume(&mut self) -> Result<(), Failure> {
        while self.progress.try_recv().is_ok() {}
        let call = self
            .start("slow", json!({ "seconds": 2, "steps": 8 }))
            .await?;
        for step in 1..=2 {
            same(
                self.progress.recv().await,
                Some((f64::from(step), Some(8.0))),
            )?;
        }
        same(self.relay.cut() > 0, true)?;
        let result = finish(call).await?;
        same(result.is_error.unwrap_or_default(), false)?;
        for step in 3..=8 {
            same(
                self.progress.recv().await,
                Some((f64::from(step), Some(8.0))),
            )?;
        }
        Ok(())
    }

    async fn close(self) -> Result<(), Failure> {
        let session = self.relay.session().ok_or("the server named no session")?;
        self.client.cancel().await?;
        same(
            status_of_ping(self.server, &self.path, &session, REVISION)
                .await?
                .as_str(),
            "404",
        )
    }
}

async fn finish(call: RequestHandle<RoleClient>) -> Result<CallToolResult, Failure> {
    match call.await_response().await? {
        ServerResult::CallToolResult(result) => Ok(result),
        other => Err(format!("not the result of a tool: {other:?}").into()),
    }
}

fn text(result: &CallToolResult) -> String {
    json!(result.content)[0]["text"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn same<T: PartialEq + Debug>(found: T, expected: T) -> Result<(), Failure> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{found:?} instead of {expected:?}").into())
    }
}
