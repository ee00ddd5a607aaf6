//! The client's own side: what it answers, and what it takes note of.

use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
    ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability, ErrorData,
    Implementation, ListRootsResult, LoggingLevel, LoggingMessageNotificationParam,
    ProgressNotificationParam, ResourceUpdatedNotificationParam, Root, RootsCapabilities,
    SamplingCapability, SamplingMessage,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ClientHandler, RoleClient};
use serde_json::json;
use tokio::sync::mpsc;

/// Answers every request of the server and sends what it hears down its channels.
pub struct Recorder {
    /// Each progress notification's `progress` and `total`.
    pub progress: mpsc::UnboundedSender<(f64, Option<f64>)>,
    /// The level of each log message.
    pub logged: mpsc::UnboundedSender<LoggingLevel>,
    /// The URI of each updated resource.
    pub updated: mpsc::UnboundedSender<String>,
}

impl ClientHandler for Recorder {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.sampling = Some(SamplingCapability::default());
        capabilities.elicitation = Some(ElicitationCapability::default());
        capabilities.roots = Some(RootsCapabilities::default());
        ClientConfig::new(capabilities, Implementation::new("rmcp", "1.0.0"))
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let asked = json!(params.messages[0].content)["text"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let message = SamplingMessage::assistant_text(format!("answer to {asked}"));
        Ok(CreateMessageResult::new(message, "test-model".to_owned()))
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = params else {
            return Ok(ElicitResult::new(ElicitationAction::Decline));
        };
        let content = json!({ "name": format!("asked {message}") });
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content))
    }

    async fn list_roots(
        &self,
        _context: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(vec![
            Root::new("file:///tmp/a%20root").with_name("a root"),
        ]))
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        // Nobody listens any more once the scenario has ended; the same holds below.
        let _ = self.progress.send((params.progress, params.total));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let _ = self.logged.send(params.level);
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let _ = self.updated.send(params.uri);
    }
}
