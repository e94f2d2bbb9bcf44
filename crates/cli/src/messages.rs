//! Conversations in files: a JSON array of messages with `role` and `content`, as chat's `/save` writes it.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rocmforge::Message;
use rocmforge::parts::Conversation;
use rocmforge_gguf::escape_control;
use serde::Deserialize;

use crate::input::{read_bounded, read_file};

/// The messages of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Messages {
    pub system: Option<String>,
    /// Of the user and the assistant.
    pub turns: Vec<Message>,
}

#[derive(Deserialize)]
struct Given {
    role: Role,
    content: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    User,
    Assistant,
}

impl Messages {
    /// Reads a file, or stdin for `-`.
    pub fn read(path: &Path) -> Result<Messages> {
        let bytes = match path.as_os_str() == "-" {
            true => read_bounded(std::io::stdin()).context("cannot read stdin")?,
            false => read_file(path)?,
        };
        let name = escape_control(&path.to_string_lossy()).into_owned();
        Messages::parse(&bytes).with_context(|| format!("'{name}' is no conversation"))
    }

    fn parse(json: &[u8]) -> Result<Messages> {
        let given: Vec<Given> = serde_json::from_slice(json)
            .context("expected a JSON array of messages, each with a role and a content")?;
        let mut given = given.into_iter().peekable();
        let system = given.next_if(|message| message.role == Role::System);
        let turns = given.map(|message| match message.role {
            Role::User => Ok(Message::new("user", message.content)),
            Role::Assistant => Ok(Message::new("assistant", message.content)),
            Role::System => bail!("only its first message may be the system's"),
        });
        Ok(Messages {
            system: system.map(|message| message.content),
            turns: turns.collect::<Result<_>>()?,
        })
    }

    /// Replaces the messages of `conversation`, and its system prompt if the file has one.
    pub fn put_into(self, conversation: &mut Conversation) {
        conversation.clear();
        if self.system.is_some() {
            conversation.set_system(self.system);
        }
        for turn in self.turns {
            conversation.push(turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_conversations() {
        let text = br#"[{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
            {"role": "assistant", "content": "a"}]"#;
        let expected = Messages {
            system: Some("s".into()),
            turns: vec![Message::new("user", "u"), Message::new("assistant", "a")],
        };
        assert_eq!(Messages::parse(text).unwrap(), expected);
        for bad in [
            "",
            "{}",
            r#"[{"role": "user"}]"#,
            r#"[{"role": "king", "content": ""}]"#,
            r#"[{"role": "user", "content": ""}, {"role": "system", "content": ""}]"#,
        ] {
            assert!(Messages::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
