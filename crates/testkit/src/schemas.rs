//! JSON schemas of the kinds that people use for answers.

use serde_json::{Value, json};

/// Schemas, each with values that they allow.
pub fn schemas() -> Vec<(Value, Vec<Value>)> {
    vec![
        (
            json!({ "type": "object" }),
            vec![
                json!({}),
                json!({ "a": [1, -2.5e3, null, true, "x\n\"\\"], "ü": {} }),
            ],
        ),
        (
            json!({
                "type": "object",
                "properties": {
                    "name": { "type": "string" },
                    "age": { "type": "integer", "minimum": 0, "maximum": 130 },
                    "tags": { "type": "array", "items": { "type": "string" }, "maxItems": 3 }
                },
                "required": ["name", "age"],
                "additionalProperties": false
            }),
            vec![
                json!({ "name": "Ada Lovelace", "age": 36 }),
                json!({ "name": "世界 🌍", "age": 0, "tags": ["a", "b b", ""] }),
            ],
        ),
        (
            json!({ "enum": ["red", "green", 3, null, { "a": 1 }] }),
            vec![json!("red"), json!(3), json!(null), json!({ "a": 1 })],
        ),
        (
            json!({ "type": "array", "items": { "type": "number" }, "minItems": 2, "maxItems": 5 }),
            vec![json!([1, 2]), json!([0.5, -1e-7, 3, 4.25, 1000000])],
        ),
        (
            json!({ "anyOf": [{ "type": "string", "maxLength": 4 }, { "type": "boolean" }] }),
            vec![json!("abcd"), json!(""), json!(true), json!("日本語!")],
        ),
        (
            json!({ "type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$" }),
            vec![json!("AB-123"), json!("ZZ-00000")],
        ),
        (
            json!({
                "$defs": {
                    "node": {
                        "type": "object",
                        "properties": {
                            "value": { "type": "integer" },
                            "next": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] }
                        },
                        "required": ["value", "next"],
                        "additionalProperties": false
                    }
                },
                "$ref": "#/$defs/node"
            }),
            vec![json!({ "value": 1, "next": { "value": -20, "next": null } })],
        ),
        (
            json!({
                "type": "object",
                "properties": { "kind": { "const": "point" } },
                "required": ["kind"],
                "additionalProperties": { "type": "number" }
            }),
            vec![
                json!({ "kind": "point", "x": 1, "y": -0.5 }),
                json!({ "kind": "point" }),
            ],
        ),
        (
            json!({
                "type": "array",
                "prefixItems": [{ "type": "string", "format": "date" }, { "type": "integer" }],
                "items": false,
                "minItems": 2
            }),
            vec![json!(["2024-02-29", 7])],
        ),
        (
            json!({
                "allOf": [
                    { "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] },
                    { "properties": { "b": { "type": "string", "minLength": 2 } }, "required": ["b"] }
                ],
                "additionalProperties": true
            }),
            vec![
                json!({ "a": 5, "b": "xy" }),
                json!({ "a": 0, "b": "héllo", "c": [] }),
            ],
        ),
    ]
}
