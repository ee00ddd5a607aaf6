//! The prompts, and the completion of their arguments.

use serde_json::{Value, json};

use super::session::Revision;

/// The styles of `greeting`, in the order completion offers them.
const STYLES: [&str; 4] = ["casual", "cheerful", "formal", "friendly"];

/// What `prompts/list` answers.
pub(super) fn list(revision: Revision) -> Value {
    let mut prompts = json!([
        {
            "name": "greeting",
            "title": "Greeting",
            "description": "Asks the model to greet somebody",
            "arguments": [
                { "name": "name", "description": "Whom to greet", "required": true },
                { "name": "style", "description": "How to greet; completed", "required": false },
            ],
        },
        {
            "name": "introduce",
            "title": "Introduction",
            "description": "Shows the model the welcome resource of this server",
        },
    ]);
    if !revision.has_structured_content() {
        for prompt in prompts.as_array_mut().into_iter().flatten() {
            prompt.as_object_mut().expect("every prompt above is an object").remove("title");
        }
    }
    json!({ "prompts": prompts })
}

/// One prompt with its arguments filled in, or what is wrong with them.
pub(super) fn get(name: &str, arguments: &Value) -> Result<Value, String> {
    match name {
        "greeting" => greeting(arguments),
        "introduce" => {
            let resource = super::resources::welcome();
            Ok(json!({
                "description": "The welcome resource",
                "messages": [
                    { "role": "user", "content": { "type": "resource", "resource": resource } },
                    user("Introduce yourself as the server described above."),
                ],
            }))
        }
        _ => Err("there is no such prompt; prompts/list names them all".to_owned()),
    }
}

fn greeting(arguments: &Value) -> Result<Value, String> {
    let name = arguments["name"].as_str().ok_or("the argument `name` must be a string")?;
    let style = match &arguments["style"] {
        Value::Null => STYLES[0],
        style => style
            .as_str()
            .filter(|style| STYLES.contains(style))
            .ok_or_else(|| format!("the argument `style` must be one of {}", STYLES.join(", ")))?,
    };
    Ok(json!({
        "description": format!("A {style} greeting"),
        "messages": [user(&format!("Please greet {name} in a {style} way."))],
    }))
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": { "type": "text", "text": text } })
}

/// The styles that begin with `typed`, for the argument `style` of `greeting`.
pub(super) fn complete(name: &str, argument: &str, typed: &str) -> Vec<String> {
    if (name, argument) != ("greeting", "style") {
        return Vec::new();
    }
    STYLES.iter().filter(|style| style.starts_with(typed)).map(ToString::to_string).collect()
}

/// Whether there is a prompt of this name.
pub(super) fn exists(name: &str) -> bool {
    matches!(name, "greeting" | "introduce")
}

#[cfg(test)]
mod tests {
    use super::{complete, get};
    use serde_json::json;

    #[test]
    fn arguments_fill_the_prompt() {
        let prompt = get("greeting", &json!({ "name": "Ada", "style": "formal" })).unwrap();
        let text = prompt["messages"][0]["content"]["text"].as_str().unwrap();
        assert!(text.contains("Ada") && text.contains("formal"), "{text}");
        assert!(get("greeting", &json!({})).is_err());
        assert!(get("greeting", &json!({ "name": "Ada", "style": "rude" })).is_err());
        assert!(get("other", &json!({})).is_err());
    }

    #[test]
    fn styles_are_completed_by_prefix() {
        assert_eq!(complete("greeting", "style", "f"), ["formal", "friendly"]);
        assert!(complete("greeting", "name", "f").is_empty());
    }
}
